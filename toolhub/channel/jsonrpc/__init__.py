"""Our own JSON-RPC connection: used instead of the SDK's dispatcher for child processes and builtin servers."""
