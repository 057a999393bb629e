"""The optional cloud: redact, compress, show, send, and write a receipt.

`governor` decides, and knows the store, prices, budgets and what may never be sent. It leaves HTTP
to `client`, which knows no memory, and what is private to `redact`, which knows no service.
Importing this package opens no connection and loads no client. Nothing is sent unless a cloud is
configured.
"""
