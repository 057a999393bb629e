"""Finding memories: vector search, full-text search, and one score fused from both.

Runs no SQL and no model. An array that a search may still be reading is only appended to, or
replaced by a copy. Arrays that are overwritten in place are copied into each search's view.
"""
