"""Finding memories: the vector index, what is indexed of a text, and both fused to one score.

Runs no SQL and no model.
"""
