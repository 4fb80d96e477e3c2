"""What several benchmarks share: results, measuring, processes, MCP servers, baselines."""
