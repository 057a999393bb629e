"""The graph: who is what to whom, and since when (Mem0ᵍ).

Knows facts as text, entities and relations. The store keeps them; the encoder that reads facts is
an argument.
"""
