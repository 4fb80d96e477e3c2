"""Processes without network, files or privileges, in which hostile input is parsed."""
