"""Pictures: decoded without trust, hashed, shrunk, stripped of metadata; and the text in them.

Knows bytes and pixels; no store, and nothing else of what a picture shows.
"""
