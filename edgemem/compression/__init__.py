"""Sending less: which words of a context to keep within a budget of tokens.

Knows texts, scores and token counts; knows nothing of memories or of who receives the text.
"""
