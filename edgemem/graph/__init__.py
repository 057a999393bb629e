"""The graph: who is what to whom, since when, and which part of it answers a question (Mem0ᵍ).

Knows facts as text, entities and relations. What is kept is the store's; the encoder that reads
facts is given to it.
"""
