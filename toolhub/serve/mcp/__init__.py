"""The MCP gateway: the hub as one MCP server, in both generations of the protocol."""
