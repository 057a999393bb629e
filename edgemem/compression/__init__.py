"""Making a context smaller: which of its tokens matter, and which are kept.

compress.py knows characters and tokens; fisher.py knows the arithmetic of a transformer. Neither
knows a store.
"""
