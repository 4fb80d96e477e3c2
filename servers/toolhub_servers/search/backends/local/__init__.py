"""The search backend `local`: a folder of documents with a full-text index."""
