"""Making a context smaller: which of its tokens matter, and which are kept.

layout.py knows characters; fisher.py knows a transformer's arithmetic; neither knows a store.
"""
