"""Pictures: looked at without trust, hashed, shrunk, rid of what they tell of their owner.

Knows bytes and pixels; no store, no model, and nothing of what a picture shows.
"""
