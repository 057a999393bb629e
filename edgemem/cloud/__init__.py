"""The optional cloud, and what stands before it: redact, compress, ask, send, note a receipt.

Importing this loads no client and opens no connection; nothing is sent unless it is configured.
"""
