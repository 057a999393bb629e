"""The optional cloud, and what stands before it: redact, compress, ask, send, note a receipt.

`governor` decides, knows the store, prices and budgets, and leaves HTTP to `client`, which knows no
memory. `never` says what may not leave, `redact` hides what is private; neither knows the service.
None knows the command line. Importing this opens no connection and loads no client; nothing is sent
unless it is configured.
"""
