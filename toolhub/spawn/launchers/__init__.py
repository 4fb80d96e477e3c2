"""Start what npx and uvx would run, without them."""
