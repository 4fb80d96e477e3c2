"""Our own JSON-RPC connection to every server: over pipes, over HTTP (`channel/http.py`), or inside this process."""
