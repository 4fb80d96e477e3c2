"""What the benchmarks with a model server share: an agent with a script, prompts, and a plain client."""
