"""What runs models: finding their files, embedding text, generating text.

Knows nothing of memories or stores. Importing this package loads no model library.
"""
