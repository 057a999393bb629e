"""The local server: a Memory and its model over HTTP, for the programs of the same person.

`serve(memory)` runs until it is stopped; `app(memory)` is the ASGI application alone, for a program
that has a server of its own. asgi.py has the routes, guard.py who may call, work.py the one thread
that asks the engine; completions.py and memories.py the shapes; page.py and inspect.py the memory
inspector, a page for the person. Needs the extra `serve`.
"""

from __future__ import annotations

from edgemem import extras

extras.require("serve")

from edgemem.server.asgi import app  # noqa: E402
from edgemem.server.limits import Limits  # noqa: E402
from edgemem.server.run import serve  # noqa: E402

__all__ = ["Limits", "app", "serve"]
