"""The servers `python` and `stateless_python`, on sandboxes."""
