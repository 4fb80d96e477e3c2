"""Searching the web or a folder: one interface, several backends behind it, tried in order; and the search servers."""
