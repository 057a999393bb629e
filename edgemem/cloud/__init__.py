"""The optional cloud: redact, compress, show, send, and write a receipt.

`governor` decides, and knows the store, prices and budgets. It leaves HTTP to `client`, which knows
no memory. `never` says what may not be sent, and `redact` hides what is private; neither knows the
service. Importing this package opens no connection and loads no client. Nothing is sent unless a
cloud is configured.
"""
