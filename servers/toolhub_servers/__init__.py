"""The builtin MCP servers of toolhub. A hub runs them in its process (`builtin: clock`); `python -m` runs one alone.

Each server is a module with `create_server(**options)`, `main()` for its own command line and, where tools need keys,
`missing_options(**options)`. The entry point group `toolhub.servers` in pyproject.toml gives each a short name.

- `clock.py`, `files.py`, `task_planner.py`, `sqlite/`, `python/`, `browser/`: servers that need no service
- `search/`, `scrape/`, `models/`: servers that ask services on the web
- `serving/`: what all servers share: the context from the hub, tools, the command line, stdio
- `web/`: the HTTP client, `confined/`: processes for untrusted input
"""
