"""Sessions with MCP servers: the pool of one server, the slot that restarts a session, the session itself."""
