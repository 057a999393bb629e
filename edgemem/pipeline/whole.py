"""What is told as it was said: a turn, all of somebody, a photo's text, an item of a list.

Knows a Memory, the turns of a conversation and the stages' fixed answers; no prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

from edgemem import language
from edgemem.pipeline import photos
from edgemem.pipeline.lasting import KINDS, lasting
from edgemem.pipeline.passages import answered, asks_to_see, asks_whole, nearness
from edgemem.pipeline.recall import FAR_FROM_BEST, evidence_of, relevant, telling, told_of, within
from edgemem.pipeline.replies import Part, joined, parts
from edgemem.pipeline.turn import Turn
from edgemem.results import ASSISTANT, Evidence, Hit, Scope, SearchResults
from edgemem.stages import generation
from edgemem.store.rows import StoredTurn

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["listed", "of_photo", "photo_asked", "read_out", "refusal_of", "told_whole"]

_SHORTEST = 3  # items of a list in which a place counts
_LEAST_NEAR = 0.5  # share of the words asked for that an answer has
_LATEST = 40  # turns among which the last one that tells something is sought


def told_whole(
    memory: Memory,
    scope: Scope,
    question: str,
    hits: SearchResults,
    sent: Sequence[Hit] | None,
    turns: Sequence[Turn],
    *,
    most: int,
) -> tuple[Evidence, ...] | None:
    """What answers a question as it was told: the user's first or last message or question, an
    answer of the conversation, at most `most` turns of the user or of somebody, or a photo's text;
    None if the question asks for none of it.

    sent: the photos that came with the question; None if the model sees, and so reads none from
    memory. turns: of the conversation.
    """
    found: tuple[Evidence, ...] = ()
    if not sent:
        if (place := language.turn_asked(question)) is not None:
            said = [turn for turn in turns if turn.said.role == "user"]
            return _first(memory, scope, said) if place == 0 else _last(memory, scope, said)
        if (place := language.question_asked(question)) is not None:
            asked = [turn.said for turn in turns if turn.said.role == "user" and turn.wants]
            return tuple(Evidence(m.content, m.timestamp, "User") for m in asked[place:][:1])
        if (what := language.reply_asked(question)) is not None:
            return _replied(what, turns) or None
        if language.asked_whom(question) == ["i"]:
            lasts = chain(*(lasting(memory, scope, kind) for kind in KINDS))
            own = [hit for hit in lasts if language.Statement.of(hit.memory).person == ("User",)]
            own.sort(key=lambda hit: not language.tells_name(hit.memory))
            return tuple(evidence_of(memory, None, own)[:most])
        found = told_of(memory, question, hits, most=most, scope=scope)
    if sent is not None:
        found = found or read_out(memory, question, hits, sent)
    return found or None


def _replied(what: str, turns: Sequence[Turn]) -> tuple[Evidence, ...]:
    """The answer of the conversation that has most of the words asked for, with the message before
    it; the last one if none are asked for. No fixed text that tells nothing."""
    asked = language.content_words(what)
    best, found = 0.0, None
    for before, reply in pairwise(turns):
        if reply.said.role != "assistant" or reply.refused:
            continue
        near = language.share(asked, f"{before.meant} {reply.said.content}") if asked else 1.0
        if near >= max(best, _LEAST_NEAR):
            best, found = near, reply.said
    return (Evidence(found.content, found.timestamp, ASSISTANT),) if found else ()


def _first(memory: Memory, scope: Scope, said: Sequence[Turn]) -> tuple[Evidence, ...]:
    """The user's first message of the conversation, without what was deleted."""
    told = {turn.content for turn in _standing(memory, scope, 2 * len(said))}
    kept = (t.said for t in said if t.wants or t.tells or t.said.content in told)
    return tuple(Evidence(m.content, m.timestamp, "User") for m in islice(kept, 1))


def _last(memory: Memory, scope: Scope, said: Sequence[Turn]) -> tuple[Evidence, ...]:
    """The user's last message that tells something, in the conversation (`said`) or before it."""
    stored = _standing(memory, scope, _LATEST)
    told = [Evidence(turn.content, turn.timestamp, "User") for turn in stored]
    told += telling([turn.said for turn in said if turn.tells])
    return tuple(sorted(told, key=lambda e: e.when or "")[-1:])


def _standing(memory: Memory, scope: Scope, most: int) -> list[StoredTurn]:
    """The user's messages among the last `most` turns, without those edited or deleted."""
    turns = [t for t in memory.store.recent_turns(scope, limit=most) if t.role == "user"]
    standing = {*memory.store.standing_turns([turn.id for turn in turns])}
    return [turn for turn in turns if turn.id in standing]


def listed(
    memory: Memory, question: str, hits: Sequence[Hit]
) -> tuple[str, tuple[Evidence, ...]] | None:
    """The item of an assistant's list that a question asks for by its place, and its evidence. None
    if the question asks for none, or if no reply has such a list."""
    place = language.place_asked(question)
    if place is None:
        return None
    found = evidence_of(memory, None, within(hits, FAR_FROM_BEST), assistants=True)
    lists: list[tuple[Evidence, list[Part]]] = []
    for evidence in (e for e in found if e.is_reply):
        by_list: dict[int, list[Part]] = {}
        for part in parts(evidence.text):
            by_list.setdefault(part.list_number, []).append(part)
        by_list.pop(0, None)
        lists += ((evidence, items) for items in by_list.values())
    lists = [(e, items) for e, items in lists if len(items) >= max(_SHORTEST, place)]
    if not lists:
        return None
    texts = [f"{items[0].head}: {joined(items)}" for _, items in lists]
    asked = answered(memory, [evidence for evidence, _ in lists])
    near = nearness(memory, question, texts, before=[asked.get(e, "") for e, _ in lists])
    evidence, items = lists[int(near.argmax())]
    part = items[place - 1 if place > 0 else place]
    told = replace(evidence, text=f"{part.place}. {part.text}")
    return part.text, (told,)


def photo_asked(memory: Memory, question: str, hits: Sequence[Hit]) -> Hit | None:
    """The image that a question is about: the best hit, or the one that it was sent with. None if
    the best hit is not relevant, or if what is known of the image has no word of the question."""
    if not relevant(memory, hits[:1]):
        return None
    best, asked = {*hits[0].sources}, language.content_words(question)
    sent = (hit for hit in hits if hit.image is not None and best.intersection(hit.sources))
    return next((hit for hit in sent if language.share(asked, photos.known_of(hit))), None)


def of_photo(memory: Memory, request: str, hits: Sequence[Hit]) -> tuple[Evidence, ...]:
    """What is known of the photo that a deed asks to see: the one that the request names ("Show me
    the receipt"), or the newest."""
    photo = photo_asked(memory, request, hits)
    if not asks_to_see(memory, request, photo):
        return ()
    photo = photo or _newest(hits)
    text = photo and (photos.whole_text(photo) or photos.head_of(photo))
    return (Evidence(text, photo.valid_from, source=photo),) if photo and text else ()


def refusal_of(memory: Memory, question: str, hits: Sequence[Hit], sent: Sequence[Hit] = ()) -> str:
    """The answer if no memory tells. About an image it says that no model has seen it. sent: the
    images that came with the question."""
    photo = sent[0] if sent else photo_asked(memory, question, hits)
    if photo is None:
        return generation.NOTHING_FOUND
    read = photo.image is None or photo.image.ocr_state != "pending"
    return generation.unseen(photos.caption_of(photo), text=bool(photos.lines_of(photo)), read=read)


def read_out(
    memory: Memory, question: str, hits: Sequence[Hit], sent: Sequence[Hit] = ()
) -> tuple[Evidence, ...]:
    """The text of the photo that a question asks to be told whole ("What did the receipt say?");
    none for other questions, and of a photo without a text.

    sent: the photos that came with the question, which is about these. One that says "photo" and no
    more is about the newest.
    """
    asked = photo_asked(memory, question, hits)
    if not (sent or asked) and asks_whole(memory, question):
        asked = _newest([hit for hit in hits if photos.lines_of(hit)])
    meant = sent or ([asked] if asked else [])
    texts = [(hit, text) for hit in meant if (text := photos.whole_text(hit))]
    if not texts or not asks_whole(memory, question, texts[0][0]):
        return ()
    return tuple(Evidence(text, hit.valid_from, source=hit) for hit, text in texts)


def _newest(hits: Sequence[Hit]) -> Hit | None:
    taken = [hit for hit in hits if hit.kind == "image"]
    return max(taken, key=lambda hit: hit.valid_from or hit.created_at, default=None)
