"""Channels: what carries the conversation with one server. Only these modules and `serve/` import the MCP SDK."""
