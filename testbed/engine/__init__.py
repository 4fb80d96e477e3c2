"""A real inference engine on this machine's CPU, for tests and benchmarks: vLLM with models of random weights.

`install.py` makes what it needs (`make engine`), `models.py` makes the models, `server.py` runs one.
"""
