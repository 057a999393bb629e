"""The graph: who is what to whom, since when, and which part of it answers a question (Mem0ᵍ).

Knows facts as text, entities and relations; knows no model. What a sentence says is the language
room's to read, and what is kept is the store's.
"""
