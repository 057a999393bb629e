"""Making a context smaller: which of its tokens matter, and which are kept.

Knows tokens, text and scores; knows no store and no network.
"""
