"""Making a context smaller: which of its tokens matter, and which are kept.

layout.py knows characters; weights.py and backprop.py know a transformer's arithmetic and no text.
Nothing here knows a store, a memory or the network.
"""
