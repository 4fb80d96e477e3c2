"""Measures toolhub against what people use today: one module per question, `runner.py` runs them."""
