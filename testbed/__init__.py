"""What tests and benchmarks both install, outside the clone: third-party MCP servers and an inference engine."""
