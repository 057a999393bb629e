"""The graph: who is what to whom, and since when (Mem0ᵍ).

Knows facts as text, entities and relations. What is kept is the store's; the encoder that reads
facts is given to it.
"""
