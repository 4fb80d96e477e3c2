"""The hub as a server process: task API `/v1`, MCP gateway `/mcp`, metrics and health checks."""
