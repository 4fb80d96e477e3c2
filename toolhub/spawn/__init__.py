"""How child processes are obtained, watched and ended."""
