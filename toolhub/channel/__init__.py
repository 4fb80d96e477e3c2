"""Channels: a duplex conversation with one server, whatever carries it. The only importers of `mcp` below the doors."""
