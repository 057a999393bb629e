"""The memory as an MCP server on standard input and output. The only importer of mcp.

While it runs, the SDK redirects all other output to stderr. Needs the extra `mcp`, whose
package depends on those of the extra `serve`.
Source: Model Context Protocol, tools. The tools have the names of mem0's MCP server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import ValidationError

import edgemem
from edgemem.errors import EdgememError, StoreError
from edgemem.memory import Memory
from edgemem.results import MemoryItem
from edgemem.server.service import shown

__all__ = ["mcp_server"]

F = TypeVar("F", bound=Callable[..., Any])

_INSTRUCTIONS = (
    "Long-term memory of the user, kept on this device. Search it before you answer what depends "
    "on the user's life or earlier conversations; add what the user tells of themselves."
)
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_DESTROYS = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
)


class _Server(MCPServer[Any]):
    """The SDK's server, which names wrong arguments in few words."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as exc:
            if not isinstance(cause := exc.__cause__, ValidationError):
                raise
            wrong = [(".".join(map(str, e["loc"])), e["msg"]) for e in cause.errors()]
            told = "; ".join(f"{where}: {what}" for where, what in wrong)
            # The SDK logs only the names of the arguments if a ValidationError is the cause.
            raise ToolError(f"Error executing tool {name}: {told}") from cause


def mcp_server(
    memory: Memory,
    *,
    user_id: str | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
) -> MCPServer[Any]:
    """Returns a server with eight tools on a Memory, which the caller closes; `.run()` serves.

    user_id, agent_id, run_id: defaults for calls without these ids. An EdgememError or TypeError
    becomes a tool error with its message.
    """
    server = _Server(
        "edgemem",
        instructions=_INSTRUCTIONS,
        version=edgemem.__version__,
        log_level="CRITICAL",  # its messages may hold a query
    )

    def scope(user: str | None, agent: str | None, run: str | None) -> dict[str, Any]:
        return {
            "user_id": user or user_id,
            "agent_id": agent or agent_id,
            "run_id": run or run_id,
        }

    def existing(memory_id: str) -> MemoryItem:
        item = memory.get(memory_id)
        if item is None:
            raise StoreError(
                f"there is no memory with the id {shown(memory_id)}; get_memories and "
                "search_memories tell the ids"
            )
        return item

    def tool(annotations: ToolAnnotations) -> Callable[[F], F]:
        def register(function: F) -> F:
            @wraps(function)
            def told(*args: Any, **kwargs: Any) -> Any:
                try:
                    return function(*args, **kwargs)
                except (EdgememError, TypeError) as exc:  # the SDK hides the text of other errors
                    raise ToolError(str(exc)) from exc

            server.add_tool(told, annotations=annotations)
            return function

        return register

    @tool(_ADDS)
    def add_memory(
        text: str = "",
        image: str | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        infer: bool = True,
    ) -> dict[str, Any]:
        """Remember what the user said: the text itself and, with infer, the facts in it.

        image: a photo or screenshot as a data URI, such as data:image/png;base64,…; the text says
        what it is.
        """
        content: Any = text
        if image is not None:
            part = {"type": "image_url", "image_url": {"url": image}}
            content = [{"type": "text", "text": text}, part]
        message = {"role": "user", "content": content}
        ids = scope(user_id, agent_id, run_id)
        return memory.add(message, **ids, metadata=metadata, infer=infer).to_dict()

    @tool(_READS)
    def search_memories(
        query: str,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        threshold: float | None = None,
    ) -> dict[str, Any]:
        """Find the memories that fit a question best, best first. Scores lie between 0 and 1."""
        hits = memory.search(
            query,
            **scope(user_id, agent_id, run_id),
            filters=filters,
            top_k=top_k,
            threshold=threshold,
        )
        return hits.to_dict()

    @tool(_READS)
    def search_relations(
        entity: str | None = None,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        at: str | None = None,
        include_invalid: bool = False,
    ) -> dict[str, Any]:
        """Who or what somebody or something is to others ("who is Rex?"), the longest known first.

        entity: a name; the user is "User". at: a date, for what held then.
        """
        found = memory.relations(
            entity, **scope(user_id, agent_id, run_id), at=at, include_invalid=include_invalid
        )
        return found.to_dict()

    @tool(_READS)
    def get_memory(memory_id: str) -> dict[str, Any]:
        """One memory by its id."""
        return existing(memory_id).to_dict()

    @tool(_READS)
    def get_memories(
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int = 100,
    ) -> dict[str, Any]:
        """List memories, oldest first."""
        found = memory.get_all(**scope(user_id, agent_id, run_id), filters=filters, top_k=top_k)
        return found.to_dict()

    @tool(_DESTROYS)
    def update_memory(
        memory_id: str, text: str, metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Replace the text of a memory; its history keeps the old one."""
        return memory.update(existing(memory_id).id, text, metadata=metadata).to_dict()

    @tool(_DESTROYS)
    def delete_memory(memory_id: str) -> dict[str, Any]:
        """Take a memory out of every answer; its history is kept."""
        return memory.delete(existing(memory_id).id).to_dict()

    @tool(_DESTROYS)
    def delete_all_memories(
        user_id: str | None = None, agent_id: str | None = None, run_id: str | None = None
    ) -> dict[str, Any]:
        """Take all memories of a user, agent or run out of every answer. Ask the user first."""
        return memory.delete_all(**scope(user_id, agent_id, run_id)).to_dict()

    return server
