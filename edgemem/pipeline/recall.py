"""From the hits of a search to what the model is shown: what matters, and is still true.

A small base model is shown the sentences nearest to the question, an expert whole turns. A fact
leads to the turns that it was taken from, and the words of these turns are shown: a fact written by
a small model is a good search key, but a bad quotation.

Knows a Memory; no prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

from edgemem import language
from edgemem.pipeline.passages import BARE, known_of, nearest_sentences, one_line, shortened
from edgemem.pipeline.people import KINDS, Keep, all_told, counted, lasting, rare_hits
from edgemem.results import (
    ASSISTANT,
    Evidence,
    Hit,
    MemoryItem,
    Message,
    Scope,
    SearchResults,
    at_day,
    local_time,
    utc_now,
)
from edgemem.retrieval.search import RELEVANT
from edgemem.stages.intent import may_tell, only_asks
from edgemem.store import StoredTurn
from edgemem.store.relations import relations_of

if TYPE_CHECKING:
    from edgemem.memory import Memory

__all__ = ["FAR_FROM_BEST", "FAR_LESS", "NEAR_BEST", "asked_at", "asks_of_past", "changed", "clock"]
__all__ += ["evidence_of", "has_ended", "known", "near_misses", "notes", "overview", "quotes"]
__all__ += ["recall", "relevant", "search", "sources", "telling", "told_of", "within"]
__all__ += ["without_remarks"]

_MAX_EVIDENCE = 8  # turns and facts whose sentences are compared with the question
_LEAST = 0.0055  # score of a note; below it only `known` is shown
FAR_LESS = 0.03
"""The share of the best hit's score below which a hit only fills a model's window."""
FAR_FROM_BEST = 0.05  # the same, for an expert (bench/LOG.md, 2026-11-26)
_RIVALS = 0.2  # the same, for turns of which an expert should read the newest last
_OF_THE_BEST = 0.17  # the same, for an overview or a quotation
NEAR_BEST = 0.5
"""The same, for advice, a text, or an overview that names somebody."""
_QUOTED = 3  # sentences beside an answer that is not reliable
_OFF = 2  # later turns that call off what is quoted
_QUOTED_PARTS = 5  # the same, if parts of replies are among them
_NEWEST = 100  # facts of `known`; no window has room for more
_LEADING_CHARS = 400  # of the turns before a message, searched together with it
_MONTH = 30  # days from its first to its last, at most
_MANY = 400  # hits, before remarks made again and again are left out
_LONG_AGO = 31 * 86_400  # seconds after which "the gala is on the 4th" tells of a day that is over
_A_NOW = "2026-11-30T15:21"
_CLOCK, _CLEARLY = 0.42, 0.46  # cosines of what tells the time of _A_NOW to a question for the time


def asked_at(question: str, said_at: str) -> str | None:
    """The time that a question about the past asks about, ISO-8601 UTC; None if it names none."""
    day = language.asked_day(language.plain(question), local_time(said_at))
    return None if day is None else at_day(day, hour=12)


def search(
    memory: Memory,
    ids: Mapping[str, Any],
    text: str,
    said_at: str | None,
    before: Sequence[Message],
    *,
    most: int,
    keep: Keep | None = None,
) -> SearchResults:
    """The memories that fit a message, best first.

    ids: whose. said_at: ISO-8601 time of the message; if it asks about another time, this also
    finds what was valid then, if it asks when in a year, only what is of that year, and if it asks
    when something comes next, nothing whose days are over; None: it asks about no time. before: the
    turns before the message; what fits their beginnings and the message together is found, too, but
    not these turns. Of memories with the same text one is given: one of the year that the text
    names, else the one told nearest to the time that it asks about, else the newest. keep: which of
    the hits may be evidence (people.py).
    """
    query = _as_searched(text)
    at = said_at and asked_at(text, said_at)
    year = language.asked_year(query, local_time(said_at)) if said_at else None

    def fit(hit: Hit) -> tuple[bool, float]:
        told = _seconds(hit.valid_from or hit.created_at)
        of_year = year is not None and _is_of(hit, year)
        return of_year, -abs(told - _seconds(at)) if at else told

    def found(query: str, at: str | None = None) -> SearchResults:
        n = 2 * most
        while True:
            hits = memory.search(query, **ids, top_k=n, explain=True, at=at)
            once = _said_once(memory, hits, fit)
            n_found, once = len(once), keep(once) if keep else once
            enough = len(once) >= most or (n >= _MANY and len(once) < n_found)
            if enough or len(hits) < n:
                return replace(hits, items=tuple(once[:most]))
            n *= 4

    hits = found(query)
    more: list[Hit] = []
    if at is not None:  # the memories valid then, and what was said about them later
        then = found(query, at)
        more, hits = [*then], replace(hits, relations=then.relations)
    if before:
        said = " ".join(_beginning(turn) for turn in before)
        more += (
            hit for hit in found(f"{said[-_LEADING_CHARS:]} {query}") if hit.memory not in said
        )
    best: dict[str, Hit] = {}
    for hit in [*hits, *more]:
        best[hit.id] = max(hit, best.get(hit.id, hit), key=lambda h: h.score)
    ranked = _said_once(memory, sorted(best.values(), key=lambda hit: -hit.score), fit)
    if year and language.asks_when(query):
        ranked = _of_year(ranked, year) or ranked
    if said_at and language.asks_for_next(query):
        ranked = [hit for hit in ranked if not _is_over(hit, local_time(said_at))]
    return replace(hits, items=tuple(ranked[:most]))


def _beginning(turn: Message) -> str:
    """A turn's first paragraph; of an assistant's the first line, unless it heads quotes."""
    if turn.role != "assistant":
        return turn.content.partition("\n\n")[0]
    line = turn.content.partition("\n")[0]
    return "" if line.endswith(":") else line


def _of_year(hits: Sequence[Hit], year: int) -> list[Hit]:
    """The hits of a year; none if they are far below the best hit."""
    near = any(_is_of(hit, year) for hit in within(hits, _OF_THE_BEST))
    return [hit for hit in hits if _is_of(hit, year)] if near else []


def _is_of(hit: Hit, year: int) -> bool:
    """Whether a hit was told in a year or names a day of it."""
    when = local_time(hit.valid_from or hit.created_at)
    days = language.told_days(hit.memory, when)
    return when.startswith(f"{year}-") or any(first.year == year for first, _ in days)


def _is_over(hit: Hit, now: str) -> bool:
    """Whether a hit names days and all are past, or was told long ago of "the 4th"; nothing that
    comes again and again is over."""
    text, when = hit.memory, local_time(hit.valid_from or hit.created_at)
    if language.recurs(text):
        return False
    if days := language.told_days(text, when):
        return all(last.isoformat() < now[:10] for _, last in days)
    return language.names_an_nth(text) and _seconds(now) - _seconds(when) > _LONG_AGO


def _seconds(when: str) -> float:
    return datetime.fromisoformat(when).timestamp()


def _said_once(
    memory: Memory, hits: Sequence[Hit], fit: Callable[[Hit], tuple[bool, float]]
) -> list[Hit]:
    """The hits; of one speaker's turns in the same words only the one that fits most, at the place
    of the best of them."""
    times = Counter(hit.memory for hit in hits)
    again = [id for hit in hits if times[hit.memory] > 1 for id in hit.sources]
    turns = memory.store.turns(again) if again else {}
    kept: dict[Hashable, Hit] = {}
    for hit in hits:
        said = turns.get(hit.sources[0]) if hit.kind == "turn" and hit.sources else None
        key = (said.role, said.name, hit.memory) if said else hit.id
        best = kept.setdefault(key, hit)
        if best is not hit and fit(hit) > fit(best):
            kept[key] = replace(hit, score=max(hit.score, best.score))
    return list(kept.values())


def _as_searched(text: str) -> str:
    """The plain form of a text, and its words that this lacks: hasty memories are found, too."""
    plain = language.plain(text)
    if plain == text:
        return text
    known = {*language.words(plain)}
    return " ".join([plain, *(w for w in language.content_words(text) if w not in known)])


def without_remarks(
    memory: Memory,
    question: str,
    hits: Sequence[Hit],
    scope: Scope,
    *,
    least: int,
    keep: Keep | None = None,
) -> list[Hit]:
    """The hits of a search, and further ones in place of remarks made again and again.

    least: texts among which none is left out. keep: as in `search`.
    """
    query = _as_searched(question)
    if language.asks_for_next(query):  # of many that are over, `search` has left the coming ones
        return [*hits]
    more = memory.search(query, top_k=_MANY, explain=True, **asdict(scope))
    found = sorted((*hits, *(keep(more) if keep else more)), key=lambda hit: -hit.score)
    rare = rare_hits(memory, found, scope, least=least)
    if {hit.memory for hit in hits} <= {hit.memory for hit in rare}:
        return [*hits]
    return rare[: max(least, len(hits))]


def recall(
    memory: Memory,
    question: str,
    hits: Sequence[Hit],
    *,
    most: int,
    whole: bool = False,
    ended: bool = False,
) -> tuple[Evidence, ...]:
    """At most `most` sentences to answer a question from; none if nothing relevant may be shown.

    hits: of a search, best first. Text that only asks is always left out.
    whole: return whole turns, relevant or not, for an expert, which says itself if they do not
    answer. Turns far less probable than the best one are left out, and an assistant's long turn is
    cut to the sentences nearest to the question.
    ended: keep sentences that have been contradicted since, for a reader that tells by the days
    what holds. A question about the past keeps them too.
    Order: of the whole turns about as probable as the best one the newest comes last, as an expert
    takes the last of two that contradict each other; for a question about the past the best turn
    comes last. Of sentences the best comes last, or the newest if the question asks for now.
    """
    found = evidence_of(memory, None if ended else question, hits, assistants=True)
    found = found[:_MAX_EVIDENCE]
    if whole:
        near = {hit.id for hit in within(sources(found), FAR_FROM_BEST)}
        found = [e for e in found if e.source is not None and e.source.id in near]
        if language.is_of_speaker(question):  # "I live in Rome" of a quotation is nobody's home
            found = [replace(e, text=language.unquoted(e.text, own=True)) for e in found]
        found = shortened(memory, question, found)
    else:
        # Only evidence that may be shown counts: a relevant hit may be this question, asked before.
        may_tell_it = relevant(memory, sources(found))
        found = nearest_sentences(memory, question, found) if may_tell_it else []
    best = found[:most][::-1]
    if whole and not asks_of_past(question):
        rivals = within(sources(best), _RIVALS)
        return tuple(sorted(best, key=lambda e: (e.source in rivals, e.when or "")))
    return oldest_first(best) if language.asks_for_now(question) else tuple(best)


def quotes(memory: Memory, question: str, hits: Sequence[Hit]) -> tuple[Evidence, ...]:
    """What stands beside an answer that is not reliable: the sentences nearest to the question, of
    hits that are not far below the best one, and what calls them off; oldest first."""
    told = that_tell(memory, hits)
    near = within(told, _OF_THE_BEST)
    found = recall(memory, question, near, most=_QUOTED)
    if any(evidence.is_reply for evidence in found):  # a part of a reply tells less than a sentence
        found = recall(memory, question, near, most=_QUOTED_PARTS)
    known = {e.source.id for e in found if e.source}
    others = (hit for hit in told if hit.kind == "turn" and hit.id not in known)
    later = [hit for hit in others if any(_calls_off(hit, e) for e in found)]
    off = evidence_of(memory, None, later[:_OFF])
    return oldest_first([*found, *off])


def _calls_off(hit: Hit, plan: Evidence) -> bool:
    later = (plan.when or "") < (hit.valid_from or "")
    return later and language.calls_off(hit.memory, plan.text)


def near_misses(memory: Memory, question: str, hits: Sequence[Hit]) -> tuple[Evidence, ...]:
    """The quotations below a refusal: those of the `quotes` that share a word with the question."""
    asked = language.content_words(question)
    found = [(e, known_of(e.photo) if e.photo else e.text) for e in quotes(memory, question, hits)]
    return tuple(evidence for evidence, told in found if shares(asked, told))


def clock(
    memory: Memory, question: str, said_at: str, *, refers: bool = False
) -> tuple[Evidence, ...]:
    """The present day and time as evidence if a question is about them. refers: whether it may be
    about something that was found."""
    if not language.asks_only_when(question):
        return ()
    asked, told = memory.embedder.embed([question, _now_told(_A_NOW)])
    if asked @ told < (_CLEARLY if refers else _CLOCK):
        return ()
    return (Evidence(_now_told(local_time(said_at))),)


def _now_told(now: str) -> str:
    return f"Today is {language.day_text(now, named=True)}, and the time is {now[11:16]}."


def relevant(memory: Memory, hits: Sequence[Hit]) -> bool:
    """Whether any of the hits is probable enough to answer from."""
    least = RELEVANT["fast" if memory.token_embedder is None else "careful"]
    return any(hit.score >= least for hit in hits)


def sources(shown: Sequence[Evidence]) -> tuple[Hit, ...]:
    """The memories of evidence, best first, each once."""
    hits = {e.source.id: e.source for e in shown if e.source is not None}
    return tuple(sorted(hits.values(), key=lambda hit: -hit.score))


def changed(memory: Memory, shown: Sequence[Evidence]) -> frozenset[Evidence]:
    """The evidence whose memory has expired, or was edited, ended or deleted since it was found."""
    now = memory.store.get([e.source.id for e in shown if e.source is not None])
    time = utc_now()

    def is_changed(hit: Hit) -> bool:
        item = now.get(hit.id)
        if item is None or (item.memory, item.valid_to) != (hit.memory, hit.valid_to):
            return True
        return item.expires_at is not None and item.expires_at <= time

    return frozenset(e for e in shown if e.source is not None and is_changed(e.source))


def has_ended(memory: Memory, shown: Sequence[Evidence]) -> bool:
    """Whether a fact or a relation that evidence tells no longer holds."""
    if any(evidence.over for evidence in shown):
        return True
    ids, now = [hit.id for hit in sources(shown)], utc_now()
    told = relations_of(memory.store, ids, include_invalid=True)
    return any(relation.valid_to is not None and relation.valid_to <= now for relation in told)


def telling(messages: Sequence[Message]) -> list[Evidence]:
    """The user's messages of a conversation as evidence, in their order, without pure questions."""
    told = (message for message in messages if not language.is_question(message.content))
    return [Evidence(message.content, message.timestamp, "User") for message in told]


def notes(
    memory: Memory, hits: Sequence[Hit], *, most: int, seen: Collection[str] = ()
) -> tuple[Evidence, ...]:
    """The notes for an instruct model from the hits: at most `most` whole turns, oldest first.

    A turn with facts that have been contradicted since names them (`Evidence.over`). Left out are
    the texts `seen`, which are in the conversation, and hits far less probable than the best one.
    """
    near = within(hits, FAR_LESS, least=_LEAST)
    found = evidence_of(memory, None, near)
    return oldest_first([e for e in found if e.text not in seen][:most])


def known(
    memory: Memory,
    scope: Scope,
    fits: Callable[[Sequence[Evidence]], bool],
    seen: Collection[str] = (),
) -> tuple[Evidence, ...]:
    """The evidence that any answer in a scope may need, as much as fits, oldest first.

    The newest facts alternate with lasting ones, of each kind in turn. fits: whether so much
    evidence fits. seen: texts that are already in the conversation.
    """
    newest = memory.store.list(scope, kinds={"fact"})[::-1][:_NEWEST]
    facts = [Hit.of(item, 0.0) for item in newest]
    lasts = round_robin(*(lasting(memory, scope, kind) for kind in KINDS))
    hits = list(round_robin(facts, lasts))
    taken: tuple[Evidence, ...] = ()
    for evidence in evidence_of(memory, None, hits):
        if evidence.text in seen:
            continue
        if not fits(more := oldest_first([*taken, evidence])):
            break
        taken = more
    return taken


def overview(
    memory: Memory,
    question: str,
    hits: Sequence[Hit],
    *,
    most: int,
    scope: Scope | None = None,
    said_at: str = "",
) -> tuple[Evidence, ...]:
    """At most `most` turns for an overview, oldest first, each text once.

    Left out are turns that only ask, and hits far below the best one of the others. If the question
    names somebody, turns with the name stay, and of the others only the best; none are given if it
    asks for all about somebody of whom nothing was told. scope: whose memories are all read for
    such a name (people.py); if nothing resembles the question, what lasts comes first. said_at:
    ISO-8601 time of the question; if it ends with a month or a year, what was told in or of that is
    given, if anything was.
    """
    fits, of_any_time = None, hits
    if said_at and scope is not None and (named := _days_named(question, said_at)):
        question, fits = named
        more = memory.search(question, top_k=_MANY, **asdict(scope))
        hits = [hit for hit in more if fits(hit)] or hits
    whom, of_all = language.asked_about(question), language.asks_of_speaker(question)
    if scope is not None and not whom:
        hits = without_remarks(memory, question, hits, scope, least=most)
    told = that_tell(memory, hits)
    near = within(told, NEAR_BEST)
    lasts: list[Hit] = []
    left = 0
    if scope is not None and whom:
        lasts, left = all_told(
            memory, scope, question, partial(_tells_of, whom), most=most, fits=fits
        )
        told = near = [h for h in near if relevant(memory, [h]) and not _tells_of(whom, h.memory)]
    elif scope is not None and (of_all or not relevant(memory, told)):
        words = language.content_words(question)
        if of_all or not any(shares(words, hit.memory) for hit in told):
            lasts = [h for h in _that_matters(memory, scope, most) if not fits or fits(h)]
    found = evidence_of(memory, None, [*that_tell(memory, lasts), *told])
    names = {*whom, *language.named(question, (evidence.text for evidence in found))}
    of_them = [e for e in found if _is_about(partial(_tells_of, names), e)]
    if whom and not of_them:
        return overview(memory, question, of_any_time, most=most, scope=scope) if fits else ()
    ids = {hit.id for hit in (*lasts, *(near if names else within(told, _OF_THE_BEST)))}
    kept = (e for e in found if (e.source and e.source.id in ids) or e in of_them)
    once = {evidence.text: evidence for evidence in kept}
    return (*oldest_first(list(islice(once.values(), most))), *counted(left))


def _days_named(question: str, said_at: str) -> tuple[str, Callable[[MemoryItem], bool]] | None:
    """A question without the month or year at its end, and whether a memory was told in that, or
    names a day of it or the year; None if it ends with none."""
    asked = language.asked_within(question, local_time(said_at))
    if asked is None:
        return None
    first, last = asked[1].first, asked[1].last
    year = str(first.year) if (last - first).days > _MONTH else None

    def fits(item: MemoryItem) -> bool:
        told = local_time(item.valid_from or item.created_at)
        days = language.told_days(item.memory, told)
        in_it = first.isoformat() <= told[:10] <= last.isoformat()
        in_it = in_it or (year is not None and year in item.memory)
        return in_it or any(a <= last and b >= first for a, b in days)

    return asked[0], fits


def _that_matters(memory: Memory, scope: Scope, most: int) -> list[Hit]:
    """The memories that last, of each kind in turn, without remarks made again and again."""
    hits = [*round_robin(*(lasting(memory, scope, kind, most=_MANY) for kind in KINDS))]
    return rare_hits(memory, hits, scope, least=most)


def _tells_of(whom: Collection[str], text: str) -> bool:
    """Whether a text has a word for somebody, however the two are typed."""
    forms = {form for word in whom for form in _typed(word)}
    return any(language.share(forms, form) for form in _typed(text))


def _typed(text: str) -> tuple[str, str]:
    """A text without its accents, and with the letters that a keyboard has for them."""
    return language.undisguised(text)[0], text.translate(language.DIGRAPHS)


def told_of(
    memory: Memory, question: str, hits: Sequence[Hit], *, most: int, scope: Scope | None = None
) -> tuple[Evidence, ...]:
    """For "who is Tom?" at most `most` turns with his name, or in which he tells of himself, oldest
    first; none for other questions."""
    if not (whom := language.asked_whom(question)):
        return ()
    found = evidence_of(memory, None, that_tell(memory, hits))
    texts = [evidence.text for evidence in found]
    speakers = {word for evidence in found for word in language.words(evidence.speaker or "")}
    unnamed = {*whom} - {*language.named(question, texts)} - speakers
    if not all(language.is_introduced(word, texts) for word in unnamed):
        return ()
    left = 0
    has_name = partial(shares, language.content_words(" ".join(whom)))
    if scope is not None:
        theirs, left = all_told(memory, scope, question, has_name, most=most)
        found = evidence_of(memory, None, that_tell(memory, theirs))
    return (*oldest_first([e for e in found if _is_about(has_name, e)][:most]), *counted(left))


def _is_about(has_name: Callable[[str], bool], evidence: Evidence) -> bool:
    """Whether evidence names somebody, or somebody of that name speaks of themselves in it."""
    text, speaker = evidence.text, evidence.speaker or ""
    return has_name(text) or (has_name(speaker) and language.is_of_speaker(text))


def shares(names: Collection[str], text: str) -> bool:
    return language.share(names, text) > 0


def that_tell(memory: Memory, hits: Iterable[Hit]) -> list[Hit]:
    """The hits without turns that only ask."""
    return [h for h in hits if h.kind != "turn" or not only_asks(memory.embedder, h.memory)]


def oldest_first(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """As they were told; sentences of one turn in its order."""
    return tuple(sorted(found, key=lambda evidence: (evidence.when or "", evidence.place)))


def within(hits: Sequence[Hit], of_best: float, *, least: float = 0.0) -> list[Hit]:
    """The hits that have at least `of_best` times the best one's score, and at least `least`."""
    least = max(least, of_best * max((hit.score for hit in hits), default=0.0))
    return [hit for hit in hits if hit.score >= least]


def round_robin(*rows: Iterable[Hit]) -> Iterator[Hit]:
    """The first of each row, then the second of each, and so on."""
    for column in zip_longest(*rows):
        yield from (hit for hit in column if hit is not None)


def evidence_of(
    memory: Memory, question: str | None, hits: Sequence[Hit], *, assistants: bool = False
) -> list[Evidence]:
    """The hits as evidence, in their order, if possible in the words of their turns.

    A fact has its own text if it was edited (with the day of the edit if a person made it), or if
    its turns were deleted, edited or contradicted since. A contradicted turn has the sentences that
    still hold. A sentence that a person has corrected is left out, and an image of which nothing is
    known.
    question: None keeps contradicted sentences, and names the contradicted facts in
    `Evidence.over`; a question about the past keeps them too. assistants: whether the turns of an
    assistant without a name are included; a chat's own answers are never among the hits.
    """
    ids = [id for hit in hits for id in hit.sources]
    known = memory.store.turns(ids)
    turns = {id: known[id] for id in memory.store.standing_turns(ids) if id in known}
    stale = memory.stale_turns(turns)
    all_ = question is None or asks_of_past(question)
    over = {} if all_ else stale
    marked = stale if question is None else {}
    by_hand = set[str]()
    for turn, fact, old in memory.store.corrections(known):
        by_hand.add(fact)
        over = {**over, turn: (*over.get(turn, ()), old)}
    found: dict[str, Evidence] = {}
    for hit in hits:
        if hit.kind == "image" and hit.memory == BARE:
            continue
        if hit.id in by_hand:
            found[hit.id] = Evidence(hit.memory, hit.updated_at, source=hit)
            continue
        edited, is_turn = hit.updated_at != hit.created_at, hit.kind == "turn"
        said = [turns[id] for id in hit.sources if id in turns and (is_turn or id not in over)]
        # No turn says what is read in an image. Its lines stay apart once all becomes one line.
        if not is_turn and (edited or not said or hit.kind == "image"):
            text = one_line(hit.memory) if hit.kind == "image" else hit.memory
            found[hit.id] = Evidence(text, hit.valid_from, source=hit)
            continue
        for turn in [known[id] for id in hit.sources if id in known] if edited else said:
            text = hit.memory if edited else _holding(turn.content, over.get(turn.id, ()))
            if not text or (language.is_question(text) and not may_tell(memory.embedder, text)):
                continue
            of_assistant = turn.role == "assistant" and turn.name is None
            if not of_assistant or (assistants and (all_ or not _answers_old(memory, turn))):
                speaker = turn.name or (ASSISTANT if of_assistant else turn.role.capitalize())
                ended = marked.get(turn.id, ())
                evidence = Evidence(text, turn.timestamp, speaker, ended, hit)
                found.setdefault(turn.id, evidence)
    return list(found.values())


def asks_of_past(question: str) -> bool:
    return language.asks_for_past(question) or language.asks_of_a_day(question)


def _answers_old(memory: Memory, turn: StoredTurn) -> bool:
    """Whether an assistant's turn answers a turn with invalid facts, which it may repeat."""
    before = memory.store.recent_turns(turn.scope, before=turn.id, limit=1)
    return bool(memory.stale_turns(said.id for said in before))


def _holding(text: str, over: Sequence[str]) -> str:
    """The sentences of a message that still hold when facts taken from it (`over`) no longer do.

    For each fact the sentence with most of its words is dropped, with the sentences that refer back
    to it. If no sentence has any of its words, the whole message is dropped.
    """
    if not over:
        return text
    parts = language.sentences(text)
    gone = set[int]()
    for fact in over:
        asked = language.content_words(fact)
        shares = [language.share(asked, part) for part in parts]
        best = max(shares, default=0.0)
        gone.update(i for i, share in enumerate(shares) if share == best)
    for i, part in enumerate(parts):
        if i - 1 in gone and language.leans_back(part):
            gone.add(i)
    rest = " ".join(part for i, part in enumerate(parts) if i not in gone)
    return rest if len(language.content_words(rest)) > 1 else ""  # "True." says nothing
