"""What edgemem takes and gives: messages, memories, queries, hits, evidence, changes.

Knows no storage and no model. Frozen dataclasses that carry their own measurements; ``to_dict()``
gives mem0's shapes, which is also what the command line's ``--json`` prints. Times are ISO-8601
strings in UTC with milliseconds, so that they sort as text. Days are those of this machine's time
zone: `local_time`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

if TYPE_CHECKING:
    from edgemem.store.filters import Where

__all__ = [
    "AddResults",
    "Aligned",
    "Change",
    "Conflict",
    "Edge",
    "Entity",
    "EntityType",
    "Erased",
    "Event",
    "Evidence",
    "Hit",
    "Image",
    "ImageLine",
    "ImageMime",
    "ImagePart",
    "Kind",
    "Label",
    "MemoryItem",
    "MemoryList",
    "Message",
    "Picture",
    "Query",
    "Relation",
    "Relations",
    "Results",
    "Scope",
    "SearchResults",
    "Subgraph",
    "Triple",
    "at_day",
    "changed",
    "local_time",
    "to_utc",
    "utc_now",
]

Kind = Literal["fact", "turn", "summary", "image"]
Event = Literal["ADD", "UPDATE", "DELETE", "NONE"]
ImageMime = Literal["image/jpeg", "image/png", "image/webp", "image/gif"]
EntityType = Literal["person", "pet", "place", "organisation", "thing", "activity", "event", "date"]
Label = Literal[
    "married_to", "partner_of", "engaged_to", "parent_of", "child_of", "sibling_of",
    "relative_of", "friend_of", "colleague_of", "neighbour_of", "works_at", "works_as", "studies",
    "studies_at", "member_of", "volunteers_at", "lives_in", "born_in", "comes_from", "visited",
    "plans_to_visit", "has_pet", "owns", "drives", "likes", "dislikes", "allergic_to",
    "has_condition", "takes_medicine", "follows_diet", "plays", "practises", "learns", "speaks",
    "is_a", "born_on", "happens_on", "attends", "bought", "made", "located_in", "aged", "other",
]  # fmt: skip
"""What one entity may be to another."""


def utc_now() -> str:
    """The current time as stored text: ISO-8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to_utc(value: datetime | str | int | float) -> str:
    """A time as stored text: ISO-8601, UTC, milliseconds.

    value: a datetime, an ISO-8601 string, or seconds since the epoch. A naive time is taken in
    the machine's own zone. Raises ValueError on a string or number that is no time.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    elif not isinstance(value, datetime):
        try:
            value = datetime.fromtimestamp(value, UTC)
        except (OverflowError, OSError) as exc:
            raise ValueError(f"{value!r} is no time in seconds since 1970") from exc
    try:
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError) as exc:
        raise ValueError(f"{value!r} lies outside the years 1 to 9999 in UTC") from exc


def local_time(stored: str) -> str:
    """A stored time in this machine's zone, in which people name days: ISO-8601."""
    try:
        return datetime.fromisoformat(stored).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, OSError):
        return stored  # at the edges of the years 1 and 9999


def at_day(day: str, hour: int = 0) -> str:
    """An ISO day of this machine's zone, at an hour, as stored text."""
    try:
        return to_utc(f"{day}T{hour:02}:00:00")
    except ValueError:  # there too
        return to_utc(f"{day}T{hour:02}:00:00+00:00")


def _row(result: Any, *optional: str) -> dict[str, Any]:
    """The fields of a result as JSON has them. Optional ones that are None are left out."""
    out: dict[str, Any] = {}
    for f in fields(result):
        value = getattr(result, f.name)
        if value is None and f.name in optional:
            continue
        if isinstance(value, Image | ImageLine):
            value = value.to_dict()
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, tuple):
            value = list(value)
        out[f.name] = value
    return out


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose memories: any of the three may be absent (None matches everything on reading)."""

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """What a search asks for, decided once.

    text: the words. where: a filter on the memories; None: any. kinds: only these; None: any.
    now: Unix seconds; memories that have ended by then are left out. at: Unix seconds; only
    memories that held then; None: that hold now. top_k: at most so many hits.
    """

    text: str
    scope: Scope = Scope()
    where: Where | None = None
    kinds: frozenset[str] | None = None
    now: float = field(default_factory=time.time)
    at: float | None = None
    top_k: int = 10


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image of a message as it was given. source: its bytes, a path, or a data URI."""

    source: bytes | str | Path
    caption: str | None = None


@dataclass(frozen=True, slots=True)
class ImageLine:
    """A line of text in an image. confidence: of the least certain part of it, from 0.5 to 1. box:
    its four corners, the text's upper left first and then clockwise, in pixels (x, y) of the image
    as it is seen upright."""

    text: str
    confidence: float
    box: tuple[tuple[float, float], ...]

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "confidence": self.confidence, "box": [*map(list, self.box)]}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. timestamp: ISO-8601 UTC. name: the speaker, if known."""

    role: str
    content: str
    timestamp: str
    name: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[ImagePart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Image:
    """What is known of a stored image.

    id: the SHA-256 of its bytes, in hexadecimal. width, height: pixels, as it is seen upright.
    taken_at: ISO-8601 UTC. place: "latitude,longitude" in degrees. caption, caption_by: what a
    memory calls it, and who does: "user", a speaker, or a model. ocr_state: whether its text was
    read.
    """

    id: str
    mime: ImageMime
    size_bytes: int
    width: int
    height: int
    taken_at: str | None = None
    place: str | None = None
    caption: str | None = None
    caption_by: str | None = None
    ocr_state: Literal["pending", "done", "failed"] = "pending"

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(Image)}


@dataclass(frozen=True, kw_only=True)
class Picture(Image):
    """An image with its bytes.

    data: without metadata but for its orientation; empty where only the thumbnail was asked for.
    thumbnail: WebP. phash: perceptual hash, 64 bits in hexadecimal. animated: data has more frames
    than the one that the rest is of. ocr_boxes: JSON, a list of what was read and where.
    """

    data: bytes = field(repr=False)
    thumbnail: bytes = field(repr=False)
    phash: str
    animated: bool = False
    ocr_text: str | None = None
    ocr_boxes: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """One stored memory. sources: ids of the turns it was taken from. image: of kind "image"."""

    id: str
    memory: str
    kind: Kind
    created_at: str
    updated_at: str
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    valid_from: str | None = None
    valid_to: str | None = None
    expires_at: str | None = None
    sources: tuple[str, ...] = ()
    image: Image | None = None

    def to_dict(self) -> dict[str, Any]:
        """In mem0's shape. What only some memories have is there where it is known."""
        return _row(self, "image", "parts", "line")


@dataclass(frozen=True, kw_only=True)
class Hit(MemoryItem):
    """A memory found by a search. score: larger is better; parts (explain=True) sum to it. line:
    of an image, the one that was read in it and has most words of the query."""

    score: float
    parts: Mapping[str, float] | None = None
    line: ImageLine | None = None

    @classmethod
    def of(
        cls,
        item: MemoryItem,
        score: float,
        parts: Mapping[str, float] | None = None,
        line: ImageLine | None = None,
    ) -> Hit:
        """A memory that was found."""
        hit = cls.__new__(cls)  # a frozen dataclass calls a function for each of its fields
        vars(hit).update(vars(item), score=score, parts=parts, line=line)
        return hit


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a memory tells, as a model is shown it.

    text: somebody's words, or a fact. when: ISO-8601 UTC. speaker: whose words; None: nobody's,
    the fact was noted. over: facts of it that no longer hold. source: the memory. turn: the id of
    the turn whose whole words the text is. source and turn do not count in a comparison.
    """

    text: str
    when: str | None = None
    speaker: str | None = None
    over: tuple[str, ...] = ()
    source: Hit | None = field(default=None, compare=False)
    turn: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Entity:
    """Somebody or something that facts name. aliases: what else they are called."""

    name: str
    type: EntityType
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Triple:
    """What one entity is to another."""

    source: Entity
    label: Label
    target: Entity


@dataclass(frozen=True, kw_only=True)
class Relation:
    """What somebody or something is to another, as facts told it.

    memory_id: the fact that told it first. turns: ids of those in which it was told. valid_from,
    valid_to: since and until when it held, ISO-8601 UTC. invalidated_by: the fact that ended it.
    score: of the memory that tells it, where a search found that.
    """

    id: str
    source: str
    relationship: Label
    destination: str
    source_type: EntityType
    destination_type: EntityType
    memory_id: str
    valid_from: str | None = None
    valid_to: str | None = None
    invalidated_by: str | None = None
    turns: tuple[str, ...] = ()
    score: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """In mem0's shape: source, relationship, destination; and what else is known."""
        return _row(self, "score")


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one operation did to one memory. by: "rule" or "model", who decided."""

    id: str
    memory: str
    event: Event
    kind: Kind
    previous_memory: str | None = None
    by: Literal["rule", "model", "user"] = "user"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: str | None = None
    updated_at: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return _row(self, "previous_memory")


def changed(
    old: MemoryItem,
    event: Event,
    now: str,
    *,
    text: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    previous: str | None = None,
    by: Literal["rule", "model", "user"] = "user",
) -> Change:
    """What an operation did to a memory at the time `now`. None: as it was before."""
    return Change(
        id=old.id,
        memory=old.memory if text is None else text,
        event=event,
        kind=old.kind,
        previous_memory=previous,
        by=by,
        metadata=old.metadata if metadata is None else metadata,
        created_at=old.created_at,
        updated_at=now,
    )


T = TypeVar("T", MemoryItem, Hit, Change, Relation)


@dataclass(frozen=True)
class Results(Generic[T], Sequence[T]):
    """An immutable sequence of results; ``to_dict()`` is mem0's ``{"results": [...]}``."""

    items: tuple[T, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def to_dict(self) -> dict[str, Any]:
        return {"results": [item.to_dict() for item in self.items]}


@dataclass(frozen=True)
class SearchResults(Results[Hit]):
    """Hits, best first, with what finding them took. candidates: memories that were scored.

    relations: what the hits tell of whom, each with the score of the best that does.
    """

    embed_ms: float = 0.0
    search_ms: float = 0.0
    candidates: int = 0
    relations: tuple[Relation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "relations": [each.to_dict() for each in self.relations]}


@dataclass(frozen=True)
class AddResults(Results[Change]):
    """What was stored. pending: pieces of work left for later (``edgemem doctor`` lists them).

    relations: what the facts that were added tell of whom.
    """

    pending: int = 0
    seconds: float = 0.0
    relations: tuple[Relation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "relations": [each.to_dict() for each in self.relations]}


@dataclass(frozen=True)
class Relations(Results[Relation]):
    """What is told of somebody or something, the longest known first."""

    def to_dict(self) -> dict[str, Any]:
        return {"relations": [item.to_dict() for item in self.items]}


@dataclass(frozen=True, slots=True)
class Edge:
    """Two nodes of a subgraph, by their places from 0, that name the same."""

    source: int
    target: int
    name: str


@dataclass(frozen=True)
class Subgraph:
    """The memories that answer a question within a budget, oldest first, and what joins them.

    text: as MemAdapter writes a subgraph: nodes, edges, a confidence. tokens: of the text.
    confidence: how probable it is that one of the memories answers.
    """

    nodes: tuple[Hit, ...] = ()
    edges: tuple[Edge, ...] = ()
    text: str = ""
    tokens: int = 0
    confidence: float = 0.0

    @property
    def sources(self) -> tuple[str, ...]:
        """The ids of the memories, each once."""
        return tuple(dict.fromkeys(node.id for node in self.nodes))

    def to_dict(self) -> dict[str, Any]:
        return {
            "nodes": [node.to_dict() for node in self.nodes],
            "edges": [asdict(edge) for edge in self.edges],
            "sources": list(self.sources),
            "text": self.text,
            "tokens": self.tokens,
            "confidence": self.confidence,
        }


@dataclass(frozen=True, kw_only=True)
class Conflict(MemoryItem):
    """A memory that a statement contradicts. score: the cosine of the two. label: the relation
    that can have one target at a time; None where one of them denies what the other says."""

    score: float
    label: Label | None = None


@dataclass(frozen=True)
class Aligned:
    """Memories whose vectors were mapped from another model's, and those that were embedded."""

    mapped: int
    embedded: int


@dataclass(frozen=True)
class Erased(Sequence[str]):
    """The ids of all memories that an erase took. receipt: what the store keeps of it (see
    `store.erasures`), without text and ids; None if nothing went."""

    ids: tuple[str, ...] = ()
    receipt: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.ids[index]

    def to_dict(self) -> dict[str, Any]:
        rows = [{"id": id, "event": "ERASE"} for id in self.ids]
        return {"results": rows, "receipt": self.receipt}


@dataclass(frozen=True)
class MemoryList(Results[MemoryItem]):
    """Stored memories, oldest first."""
