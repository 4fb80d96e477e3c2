"""Our own MCP servers: each is hosted inside the hub (`builtin:`) or run alone over stdio (`python -m`)."""
