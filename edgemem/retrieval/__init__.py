"""Finding memories: the vector index here, its cache file and its table of vectors beside it.

Knows vectors, labels and scopes; knows no text, no SQL and no model.
"""
