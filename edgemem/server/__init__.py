"""The local server: a Memory and its model over HTTP, for the programs of the same person.

`serve(memory)` runs until it is stopped. `app(memory)` is the ASGI application alone, for a program
that has its own server. Both need the extra `serve`. asgi.py knows addresses, signals and access;
service.py the engine's queue, the metrics and the error answers. openai_api.py and memories.py have
the routes, and no rule of what is remembered or recalled. mcp.py is `edgemem mcp`, without HTTP.
"""

from __future__ import annotations

from edgemem.config import require

require("serve")

from edgemem.server.asgi import app, serve  # noqa: E402
from edgemem.server.service import Limits  # noqa: E402

__all__ = ["Limits", "app", "serve"]
