"""The server `sqlite`, and the process that its database runs in."""
