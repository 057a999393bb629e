"""Finding memories: the vector index, what is indexed of a text, and both fused to one score.

Runs no SQL and no model. Arrays that a search may still be reading are only ever appended to, or
replaced by a copy; what is overwritten in place is copied into the view of each search.
"""
