"""What does an MCP gateway cost?"""
