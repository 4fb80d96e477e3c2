"""The simulator: a model of an inference engine, its costs, and made-up tasks that run on it."""
