"""npx and uvx: what they run, remembered, so that the next start needs no launcher."""
