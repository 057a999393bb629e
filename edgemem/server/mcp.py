"""The memory as an MCP server on standard input and output. The only importer of mcp.

Whose memories the tools serve is decided when the server starts, never by a call: its arguments are
written by a language model. Results are compact JSON in one text, as they fill a model's window.
`add_memory` answers once the text is stored; a thread takes the facts.

While it runs, the SDK redirects all other output to stderr. Needs the extra `mcp`, whose
package depends on those of the extra `serve`.
Source: Model Context Protocol, tools. The tools have the names of mem0's MCP server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import Tool, ToolAnnotations
from pydantic import ValidationError

import edgemem
from edgemem.errors import EdgememError, StoreError
from edgemem.inputs import shown
from edgemem.memory import Memory
from edgemem.pipeline.ingest import EXTRACT
from edgemem.pipeline.recall import FAR_LESS, within
from edgemem.results import Change, Hit, MemoryItem, Scope, local_time, utc_now

__all__ = ["mcp_server"]

_INSTRUCTIONS = (
    "Long-term memory of the user, kept on this device: their life, preferences, projects and "
    "decisions. Search it before you answer what depends on them or on earlier conversations; add "
    "what the user tells. Of two memories that contradict each other the later one holds."
)
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
_DESTROYS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_SHOWN_CHARS = 1_000  # of a memory in a list


class _Server(MCPServer[Any]):
    """The SDK's server, which refuses unknown arguments and names wrong ones in few words."""

    async def list_tools(self) -> list[Tool]:
        tools = await super().list_tools()
        for tool in tools:
            tool.input_schema = {**_untitled(tool.input_schema), "additionalProperties": False}
        return tools

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        tools = {tool.name: tool.input_schema["properties"] for tool in await self.list_tools()}
        if unknown := sorted(arguments.keys() - tools.get(name, arguments).keys()):
            allowed = ", ".join(tools[name]) or "none"
            raise ToolError(f"{name} has no argument {shown(unknown[0])}; allowed are: {allowed}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as exc:
            if not isinstance(cause := exc.__cause__, ValidationError):
                raise
            wrong = [(".".join(map(str, e["loc"])), e["msg"]) for e in cause.errors()]
            told = "; ".join(f"{where}: {what}" for where, what in wrong)
            # The SDK logs only the names of the arguments if a ValidationError is the cause.
            raise ToolError(f"Error executing tool {name}: {told}") from cause


def _untitled(schema: Any) -> Any:
    """A JSON schema without titles, which small models take for names."""
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title"}


class _Tools:
    """The tools on the memories of one scope. A worker takes the facts of what is added."""

    def __init__(self, memory: Memory, scope: dict[str, Any]) -> None:
        self._memory, self._scope = memory, scope
        self._worker = ThreadPoolExecutor(1, "edgemem-facts")
        self._worker.submit(self._take_facts)  # what was left when the last server ended

    def add_memory(
        self,
        text: str,
        image: str | None = None,
        metadata: dict[str, Any] | None = None,
        infer: bool = True,
    ) -> dict[str, Any]:
        """Remember a text as it is, in the user's words where possible, one subject at a time.

        It is found at once. infer: facts are also taken from it, a little later. image: a photo or
        screenshot as a data URI, such as data:image/png;base64,…; the text says what it is.
        """
        content: Any = text
        if image is not None:
            part = {"type": "image_url", "image_url": {"url": image}}
            content = [{"type": "text", "text": text}, part]
        message = {"role": "user", "content": content}
        added = self._memory.add(
            message, **self._scope, metadata=metadata, infer="later" if infer else False
        )
        if infer:
            self._worker.submit(self._take_facts)
        return {"results": [*map(_event, added)]}

    def search_memories(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        at: str | None = None,
    ) -> dict[str, Any]:
        """Find the memories that fit a question best, best first, with when each was told.

        Of two that contradict each other the later one holds; no_longer_so says what is known to
        have ended. at: a date, for what held then. filters: on metadata and on kind ("turn": the
        words themselves, "fact", "image"), such as {"kind": "fact"}.
        """
        hits = self._memory.search(query, **self._scope, filters=filters, top_k=top_k, at=at)
        return {"results": self._rows(within(hits, FAR_LESS))}

    def search_relations(
        self, entity: str | None = None, at: str | None = None, include_invalid: bool = False
    ) -> dict[str, Any]:
        """Who or what somebody or something is to others ("who is Rex?"), the longest known first.

        entity: a name; the user is "User". at: a date, for what held then.
        """
        found = self._memory.relations(
            entity, **self._scope, at=at, include_invalid=include_invalid
        )
        return {
            "relations": [_nonempty(relation.to_dict(), without=self._scope) for relation in found]
        }

    def get_memory(self, memory_id: str) -> dict[str, Any]:
        """One memory by its id: its whole text, its metadata, and its history, oldest first."""
        item = self._existing(memory_id)
        history = [
            _nonempty(change, without=("id", "memory_id"))
            for change in self._memory.history(item.id)
        ]
        return {**self._rows([item])[0], "memory": item.memory, "history": history}

    def get_memories(
        self, filters: dict[str, Any] | None = None, top_k: int = 20, offset: int = 0
    ) -> dict[str, Any]:
        """List memories, the one that was added last first. offset: how many to pass over."""
        found = self._memory.get_all(**self._scope, filters=filters)
        listed = found[::-1][max(0, offset) :][: max(0, top_k)]
        return {"results": self._rows(listed), "in_all": len(found)}

    def update_memory(
        self, memory_id: str, text: str, metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Replace a memory's text, and its metadata if given; its history keeps the old text."""
        return _event(self._memory.update(self._existing(memory_id).id, text, metadata=metadata))

    def delete_memory(self, memory_id: str) -> dict[str, Any]:
        """Take a memory out of every answer; its history is kept."""
        return _event(self._memory.delete(self._existing(memory_id).id))

    def delete_all_memories(self) -> dict[str, Any]:
        """Take every memory of the user out of every answer, whatever it is about. Ask the user
        first; to forget one thing, search for it and use delete_memory."""
        return {"deleted": len(self._memory.delete_all(**self._scope))}

    def _take_facts(self) -> None:
        with suppress(EdgememError):  # closed, or another process works: the pieces stay pending
            while self._memory.store.pending(EXTRACT, due_before=utc_now(), limit=1):
                self._memory.process_pending(1)

    def _existing(self, memory_id: str) -> MemoryItem:
        item = self._memory.get(memory_id)
        if item is None or not Scope(**self._scope).has(item):
            raise StoreError(
                f"there is no memory with the id {shown(memory_id)}; get_memories and "
                "search_memories tell the ids"
            )
        return item

    def _rows(self, items: Sequence[MemoryItem]) -> list[dict[str, Any]]:
        over = self._memory.stale_turns(turn for item in items for turn in item.sources)
        return [
            _row(item, [fact for turn in item.sources for fact in over.get(turn, ())])
            for item in items
        ]


def mcp_server(
    memory: Memory,
    *,
    user_id: str | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
) -> MCPServer[Any]:
    """Returns a server with eight tools on a Memory, which the caller closes; `.run()` serves.

    user_id, agent_id, run_id: whose memories the tools read and change; no others are reached. An
    EdgememError or TypeError becomes a tool error with its message.
    """
    server = _Server(
        "edgemem",
        instructions=_INSTRUCTIONS,
        version=edgemem.__version__,
        log_level="CRITICAL",  # its messages may hold a query
    )
    tools = _Tools(memory, {"user_id": user_id, "agent_id": agent_id, "run_id": run_id})
    for tool, hints in (
        (tools.add_memory, _ADDS),
        (tools.search_memories, _READS),
        (tools.search_relations, _READS),
        (tools.get_memory, _READS),
        (tools.get_memories, _READS),
        (tools.update_memory, _DESTROYS),
        (tools.delete_memory, _DESTROYS),
        (tools.delete_all_memories, _DESTROYS),
    ):
        server.add_tool(_answering(tool), annotations=hints, structured_output=False)
    return server


def _answering(tool: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """A tool whose result is compact JSON, and whose errors reach the model."""

    @wraps(tool)
    def answer(*args: Any, **kwargs: Any) -> str:
        try:
            result = tool(*args, **kwargs)
        except (EdgememError, TypeError) as exc:  # the SDK hides the text of other errors
            raise ToolError(str(exc)) from exc
        return json.dumps(result, ensure_ascii=False, separators=(",", ":"))

    return answer


def _row(item: MemoryItem, over: Sequence[str]) -> dict[str, Any]:
    """What a model needs of a memory. over: the facts of its turn that have ended."""
    row = {
        "id": item.id,
        "memory": _shortened(item.memory),
        "kind": item.kind,
        "when": local_time(item.valid_from or item.created_at)[:16],
        "ended": item.valid_to and local_time(item.valid_to)[:16],
        "expires": item.expires_at and local_time(item.expires_at)[:16],
        "no_longer_so": list(over) if item.kind == "turn" else [],
        "metadata": dict(item.metadata),
        "score": round(item.score, 2) if isinstance(item, Hit) else None,
    }
    return _nonempty(row)


def _event(change: Change) -> dict[str, Any]:
    return {"id": change.id, "memory": _shortened(change.memory), "event": change.event}


def _nonempty(row: dict[str, Any], without: Iterable[str] = ()) -> dict[str, Any]:
    left_out = set(without)
    return {k: v for k, v in row.items() if v not in (None, [], {}) and k not in left_out}


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}… ({len(text)} characters; get_memory gives all)"
