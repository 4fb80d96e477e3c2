"""Searching the web or a folder: the search servers, and the backends that they ask in order."""
