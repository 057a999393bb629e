"""What edgemem takes and gives: messages, memories, queries, hits, evidence, changes.

Knows no storage and no model. ``to_dict()`` gives mem0's shape, which the command line's ``--json``
prints too. Times are ISO-8601 strings in UTC with milliseconds, so that they sort as text. A day is
a day in this machine's time zone.
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

__all__ = ["ASSISTANT", "AddResults", "Aligned", "Change", "Conflict", "Edge", "Entity"]
__all__ += ["EntityType", "Erased", "Event", "Evidence", "Hit", "Image", "ImageLine", "ImageMime"]
__all__ += ["ImagePart", "Kind", "Label", "MemoryItem", "MemoryList", "Message", "Picture", "Query"]
__all__ += ["Relation", "Relations", "Scope", "SearchResults", "Subgraph", "at_day", "changed"]
__all__ += ["local_time", "to_utc", "utc_now"]

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
"""The relations that may hold between two entities."""

ONE_AT_A_TIME: frozenset[Label] = frozenset((
    "lives_in", "works_at", "works_as", "married_to", "partner_of", "engaged_to", "drives",
    "studies_at", "aged", "follows_diet",
))  # fmt: skip
"""Relations of which somebody has one at a time, and another later."""


def utc_now() -> str:
    """Returns the current time as it is stored: ISO-8601, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to_utc(value: datetime | str | int | float) -> str:
    """Returns a time as it is stored: ISO-8601, UTC, milliseconds.

    value: a datetime, an ISO-8601 string, or seconds since the epoch. A time without a zone is read
    in this machine's zone. Raises ValueError if a string or number is not a time.
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
    """Returns a stored time as ISO-8601 in this machine's zone, in which days are named."""
    try:
        return datetime.fromisoformat(stored).astimezone().isoformat(timespec="milliseconds")
    except (OverflowError, OSError):
        return stored  # the shift leaves the years 1 to 9999


def at_day(day: str, hour: int = 0) -> str:
    """Returns an hour of an ISO day in this machine's zone, as it is stored."""
    try:
        return to_utc(f"{day}T{hour:02}:00:00")
    except ValueError:  # the shift to UTC leaves the years 1 to 9999
        return to_utc(f"{day}T{hour:02}:00:00+00:00")


def _row(result: Any, *optional: str) -> dict[str, Any]:
    """Returns a result's fields as JSON values, without the fields of `optional` that are None."""
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
    """Whose memories. An id that is None matches everybody when reading."""

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None

    def has(self, item: MemoryItem) -> bool:
        """Whether a memory is of each id that is not None."""
        return (
            self.user_id in (None, item.user_id)
            and self.agent_id in (None, item.agent_id)
            and self.run_id in (None, item.run_id)
        )


@dataclass(frozen=True, slots=True)
class Query:
    """What a search asks for, decided once.

    where: a filter on the memories; None allows all. kinds: the kinds that may be found; None
    allows all. now: Unix seconds; memories that ended before are left out. at: Unix seconds; only
    memories that were valid then are found; None means `now`. top_k: the most hits to return.
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
    """An image of a message, as the caller gave it. source: its bytes, a path, or a data URI."""

    source: bytes | str | Path
    caption: str | None = None


@dataclass(frozen=True, slots=True)
class ImageLine:
    """A line of text in an image.

    confidence: of the line's least certain part, from 0.5 to 1. box: the four corners (x, y), in
    pixels of the upright image, clockwise from the text's upper left.
    """

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
    """A stored image, without its bytes.

    id: the SHA-256 of the stored bytes, in hexadecimal. width, height: pixels of the upright image.
    taken_at: ISO-8601 UTC. place: "latitude,longitude" in degrees. caption: the description in the
    memory that holds the image. caption_by: who wrote the caption: "user", a speaker, or a model.
    ocr_state: whether the text in the image was read.
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

    data: the file, stripped of all metadata but the orientation; empty if only the thumbnail was
    requested. thumbnail: WebP. phash: perceptual hash, 64 bits in hexadecimal. animated: `data` has
    several frames; thumbnail, phash and text are of the first. ocr_boxes: the lines that were read
    and their corners, as JSON.
    """

    data: bytes = field(repr=False)
    thumbnail: bytes = field(repr=False)
    phash: str
    animated: bool = False
    ocr_text: str | None = None
    ocr_boxes: str | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """One stored memory.

    valid_from, valid_to: when the memory became true and stopped being true. A plan that is called
    off ends before it begins. expires_at: when it stops being found. sources: ids of the turns it
    was taken from. image: only for kind "image".
    """

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
        """Returns mem0's shape. The keys `image`, `parts` and `line` are left out if None."""
        return _row(self, "image", "parts", "line")


@dataclass(frozen=True, kw_only=True)
class Hit(MemoryItem):
    """A memory found by a search.

    score: larger is better. parts: the terms that sum to the score, with explain=True. line: the
    line of text in the memory's image that has most words of the query.
    """

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
        """Makes a hit of a memory."""
        hit = cls.__new__(cls)  # a frozen dataclass calls a function for each of its fields
        vars(hit).update(vars(item), score=score, parts=parts, line=line)
        return hit


ASSISTANT = "Assistant"
"""The speaker of a model's turn, which has no name."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The content of a memory, in the form a model is shown.

    text: a speaker's words, or a fact. when: ISO-8601 UTC. speaker: who said the text; None for a
    fact or image. over: facts taken from the same turn that are no longer valid. source: the hit.
    place: of a sentence, its number in what was found. Equality ignores source and place.
    """

    text: str
    when: str | None = None
    speaker: str | None = None
    over: tuple[str, ...] = ()
    source: Hit | None = field(default=None, compare=False)
    place: int = field(default=0, compare=False)

    @property
    def is_reply(self) -> bool:
        """Whether an assistant without a name of its own said it."""
        return self.speaker == ASSISTANT

    @property
    def photo(self) -> Hit | None:
        """The image that it was read in; None if it was said."""
        return self.source if self.source and self.source.kind == "image" else None


@dataclass(frozen=True, slots=True)
class Entity:
    """A person or thing that facts name. aliases: its other names."""

    name: str
    type: EntityType
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A stored relation between two entities, with the facts that state and end it.

    source, destination: the entities' names. memory_id: the first fact that states the relation.
    turns: ids of the turns that state it. valid_from, valid_to: ISO-8601 UTC. invalidated_by: the
    fact that ended it. score: of the best hit that states it; None outside search results.
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
        """Returns mem0's shape (source, relationship, destination) with all other fields added."""
        return _row(self, "score")


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one operation did to one memory. by: who decided it."""

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
    """Returns the change of `old` at the time `now`. A text or metadata of None stays as it was."""
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
    """Hits, best first, with the cost of finding them.

    candidates: how many memories were scored. relations: what the hits, or facts from the same
    turns, state; each relation has the score of the best such hit.
    """

    embed_ms: float = 0.0
    search_ms: float = 0.0
    candidates: int = 0
    relations: tuple[Relation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "relations": [each.to_dict() for each in self.relations]}


@dataclass(frozen=True)
class AddResults(Results[Change]):
    """The changes that an add made.

    pending: pieces of work left for later, which ``edgemem doctor`` lists. relations: what the
    added and updated facts state. queued: the ids of the pieces that are left of this add itself,
    for ``Memory.take_facts``.
    """

    pending: int = 0
    seconds: float = 0.0
    relations: tuple[Relation, ...] = ()
    queued: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "relations": [each.to_dict() for each in self.relations]}


@dataclass(frozen=True)
class Relations(Results[Relation]):
    """Relations, the longest known first."""

    def to_dict(self) -> dict[str, Any]:
        return {"relations": [item.to_dict() for item in self.items]}


@dataclass(frozen=True, slots=True)
class Edge:
    """Two nodes of a subgraph that share a name. source, target: indices of the nodes, from 0."""

    source: int
    target: int
    name: str


@dataclass(frozen=True)
class Subgraph:
    """The memories that answer a question within a budget, oldest first, and their edges.

    text: nodes, edges and confidence in MemAdapter's format. tokens: how many the text has.
    confidence: the probability that one of the memories answers the question.
    """

    nodes: tuple[Hit, ...] = ()
    edges: tuple[Edge, ...] = ()
    text: str = ""
    tokens: int = 0
    confidence: float = 0.0

    @property
    def sources(self) -> tuple[str, ...]:
        """The memories' ids, without duplicates."""
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
    """A memory that a statement contradicts.

    score: the cosine of the two, at least 0. label: the relation in which they contradict (two
    homes, or a like and a dislike); None if one of the two texts negates the other.
    """

    score: float
    label: Label | None = None


@dataclass(frozen=True)
class Aligned:
    """How many vectors were mapped from another model's, and how many embedded anew."""

    mapped: int
    embedded: int


@dataclass(frozen=True)
class Erased(Sequence[str]):
    """The ids of all memories that an erase removed.

    receipt: what the store keeps about the erase, with hashes in place of texts and ids (see
    `store.erasures`); None if nothing was removed.
    """

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
