"""The doors of a hub that runs as a process of its own: task API `/v1`, MCP gateway `/mcp`, metrics, health."""
