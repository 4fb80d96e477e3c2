"""The search services on the web; `registry.py` of the package above lists them."""
