"""Whether the words beside a date speak of the past or of what is to come.

Lists of English verbs decide; what they do not settle is left open. Knows no calendar.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

__all__ = [
    "COMING",
    "PAST",
    "UNKNOWN",
    "begins_as_past",
    "clause",
    "direction",
    "is_perfect",
    "is_put_off",
    "may_be_past",
    "same_form",
    "sentence",
]

PAST, UNKNOWN, COMING = -1, 0, 1

_NEAR = 200  # characters in which a verb is looked for
_SENTENCE_END = re.compile(r"(?<![ap]\.m)(?<!\b[DM]r)(?<!\bMrs)[.!?…;:。](?=\s|$)|\n")
_JOINT = re.compile(
    r"[,()—–\"“”]| - |(?<![\w'’])(?:and|but|or|so|because|cause|cos|that|who|which|when|while|"
    r"where|if|although|though|then|since|until|till|before|after)(?![\w'’])",
    re.I,
)
_SOFT_JOINTS = frozenset((",", "and", "or"))
_BEFORE_DATE = re.compile(
    r"\b(?:on|since|until|till|til|by|before|from|after|for|to|around)\s*$", re.I
)
_PUT_OFF = re.compile(
    r"\b(?:moved|pushed|postponed|delayed|rescheduled|shifted|changed|put)(?: (?:off|back|on|"
    r"forward))?\s*$",
    re.I,
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)*")
_SPLIT = re.compile(r"(?<=\w)(n['’]t|['’](?:s|ll|re|m|ve|d))$")
_UNMARKED = {
    f"{who}{verb}": (who, verb)
    for verb, whose in {
        "m": "i", "s": "he she that there who", "re": "they you", "ve": "i we they you",
        "ll": "they you that",
    }.items()
    for who in whose.split()
}  # fmt: skip
"""Words typed without their apostrophe; not "were" and "well", which are others."""
_SUBJECT = re.compile(r"\b(?:i|he|she|we|they|you|it|my|his|her|our|their)\b", re.I)
# With these a weekday or a day of the month recurs.
_HABIT = re.compile(
    r"\b(?:usually|always|often|normally|generally|typically|never|sometimes|regularly|every|each|"
    r"whenever|weekly|fortnightly|monthly|twice|once|only|closed|most|tend|tends|used to)\b",
    re.I,
)

_BE = frozenset("am is are isn't aren't be being m re".split())
_NOW = frozenset(
    "will ll won't shall gonna gotta have has haven't hasn't must should can can't may might "
    "need needs want wants hope hopes plan plans let's lets due".split()
)
_OPEN = frozenset(
    "would wouldn't could couldn't d wish like likes love loves enjoy enjoys hate hates prefer "
    "prefers booked planned scheduled arranged decided supposed postponed registered applied "
    "entered enrolled rescheduled".split()
)
_HAVE = frozenset("has have hasn't haven't ve s".split())
_WILL = frozenset("will ll won't must should can".split())
_DID = frozenset("did didn't".split())
# After these, "to go" is not yet done.
_INTENDED = frozenset(
    "wanted hoped promised agreed asked told invited offered meant intended expected forgot "
    "going needed reminded".split()
)
_ONLY_PARTICIPLES = frozenset(
    "done gone seen taken given written broken eaten driven stolen flown grown thrown fallen "
    "chosen forgotten hidden ridden worn torn sewn drawn known shown".split()
)
_WAS = _ONLY_PARTICIPLES | frozenset(
    "was were wasn't weren't had hadn't been went came got saw met did made took gave found "
    "left told said felt kept knew thought bought brought caught taught fought sold lost won "
    "paid sent spent slept heard held stood understood began begun ran swam sang drank rang "
    "sank sat ate drove rode wrote broke spoke woke chose froze stole flew grew threw blew drew "
    "wore tore swore bore fell built lent bent meant dealt dreamt learnt burnt spelt smelt led "
    "fed bled fled sped slid hid bit lit shot shook struck stuck stung swung hung dug spun "
    "became forgot rose shone born withdrew laid lay hurt burst wept crept swept leapt knelt "
    "sought".split()
)
# These begin a question, or tell what somebody is: "Born in Leeds."
_NO_DIARY = frozenset(
    "was were wasn't weren't had hadn't did said told been born based called named aged located"
    " situated supposed allowed made built married engaged divorced retired tired stuck".split()
)
# Their present and past look the same: "I put", "they quit".
_EITHER = frozenset("put cut let set hit read quit shut cost bet beat split spread rid".split())
# Their simple present means a plan as often as a habit: "I leave on Friday".
_BASES = frozenset(
    "start begin open leave depart arrive land come go fly travel drive move return see meet "
    "sit turn finish end launch graduate visit marry get celebrate host expire join check "
    "try".split()
)
_FINITE = frozenset(
    re.sub("y$", "ie", base) + ("es" if base.endswith(("sh", "ch", "go")) else "s")
    for base in _BASES
)
_CALLS = frozenset("call ring text remind bring pick send take buy remember join".split())
_NO_ING = frozenset(
    "morning evening wedding meeting thing something nothing anything everything king ring "
    "spring string during building painting ceiling clothing feeling meaning being sibling "
    "darling according including regarding pudding earring opening beginning ending".split()
)
_NO_ED = frozenset(
    "need feed speed bleed breed weed heed seed proceed succeed exceed embed shed wed sled "
    "shred bed red hundred naked wicked sacred kindred deed greed indeed rated united used".split()
)
# After these a past form is an adjective: "a retired neighbour".
_ARTICLES = frozenset("a an the my your his our their its of with no".split())
_ATTRIBUTE = _ARTICLES | frozenset(
    "some this these those that very so more most too really in for at".split()
)
_PLACES = frozenset("at of to from by in".split())  # "at Ana's", "a poem of Ana's"
_BETWEEN = frozenset("not also just already now all both still finally to".split())
_AWAITED = frozenset("before until till once after when".split())
"""After these, what has happened is still to come: "once I've seen him on Monday"."""


def is_put_off(head: str) -> bool:
    """Whether a text that a date follows ends in "was moved", "pushed back" and the like."""
    return _PUT_OFF.search(head) is not None


def is_perfect(head: str) -> bool:
    """Whether a text says "has lived", "have not been" or "she's worked"."""
    tokens = [token for token, _ in _words(head) if token not in _BETWEEN]
    return any(
        have in _HAVE and (verb in _WAS | _EITHER or _is_past_form(verb, ""))
        for have, verb in pairwise(token for token in tokens if not token.endswith("ly"))
    )


def same_form(head: str) -> bool:
    """Whether a text has a verb whose present and past look the same: "I read it"."""
    return not _EITHER.isdisjoint(head.lower().split())


def may_be_past(text: str) -> bool:
    """Whether any verb of a text may be a past form: "I quit".

    >>> may_be_past("I quit smoking"), may_be_past("dinner booked")
    (True, False)
    """
    spoken = list(_words(text))
    tokens = [token for token, _ in spoken]
    return any(
        not (name and i) and (token in _EITHER or _kind(tokens, i, (), at_start=True) == PAST)
        for i, (token, name) in enumerate(spoken)
    )


def begins_as_past(text: str) -> bool:
    """Whether a text begins with a past form, as a diary's sentences do, whose subject is I.

    >>> begins_as_past("Sowed the peas."), begins_as_past("Was it cold?")
    (True, False)
    """
    first = next((token for token, _ in _words(text)), "")
    return first not in _NO_DIARY and (first in _WAS or _is_past_form(first, ""))


def clause(text: str, start: int, end: int) -> tuple[int, int]:
    """Where the clause that holds text[start:end] begins and ends."""
    first, last = sentence(text, start, end)
    before = _BEFORE_DATE.sub("", text[first:start])
    joints = list(_JOINT.finditer(before))
    after = _JOINT.search(text, end, last)
    return first + (joints[-1].end() if joints else 0), after.start() if after else last


def direction(text: str, start: int, end: int) -> int:
    """PAST, COMING or UNKNOWN: the direction that the nearest verb gives to text[start:end].

    The verb before it in its clause counts; if there is none, the one after it.
    """
    first, last = sentence(text, start, end)
    begin, stop = clause(text, start, end)
    if _HABIT.search(text, begin, stop):
        return UNKNOWN
    head = text[begin:start]
    own = text[start : start + 3].lower() == "on "  # "the hill we went to on Friday"
    governed = None if own else _BEFORE_DATE.search(head)
    if governed:
        head = head[: governed.start()]
    found = _read(head, at_start=True)
    if found is None:
        found = _read(text[end:stop], last=False)
    if found is None and not head.strip() and not text[first:begin].strip():
        found = _read(text[end:last], last=False)
    joints = list(_JOINT.finditer(text, first, begin))
    if joints and joints[-1][0].lower() in _AWAITED and is_perfect(head):
        return COMING
    if found is None and not _SUBJECT.search(head):  # "I bought bread, milk and tea on Friday"
        while found is None and joints and joints[-1][0].lower() in _SOFT_JOINTS:
            joint = joints.pop()
            at = joints[-1].end() if joints else first
            found = _read(text[at : joint.start()], at_start=True)
            if found is not None and joints and joints[-1][0].lower() not in _SOFT_JOINTS:
                return UNKNOWN  # "the physio who fixed it, on Friday"
        if found == PAST and head.strip() and not (governed or own):
            return UNKNOWN  # "Ordered the seeds, delivery Tuesday"
    preposition = governed[0].strip().lower() if governed else ""
    if preposition == "since":
        return PAST
    if preposition in ("to", "until", "till") and is_put_off(head):
        return COMING
    if preposition not in ("", "on", "around") and found == PAST:
        return UNKNOWN  # "it was moved to Friday", "she gave me until Friday"
    return found or UNKNOWN


def sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """Where the sentence around text[start:end] begins and ends, at most _NEAR characters away."""
    first, last = max(0, start - _NEAR), min(len(text), end + _NEAR)
    for found in _SENTENCE_END.finditer(text, first, start):
        first = found.end()
    after = _SENTENCE_END.search(text, end, last)
    return first, after.start() if after else last


def _read(part: str, *, last: bool = True, at_start: bool = False) -> int | None:
    """The direction of the last (or the first) verb of a part of a clause; None without a verb.

    at_start: the part begins its clause, so that its first word may be an order ("Call me").
    """
    spoken = list(_words(part))
    tokens = [token for token, _ in spoken]
    cues: list[tuple[int, int]] = []  # a verb's index, and the direction it gives
    for i, (_, name) in enumerate(spoken):
        kind = None if name and i else _kind(tokens, i, cues, at_start=at_start)
        if kind is not None:
            cues.append((i, kind))
    if not cues:
        return None
    if last or len(cues) == 1:
        return cues[-1][1]
    # In "is going", two cues in a row, the second one decides; else the first one does.
    return cues[1][1] if cues[1][0] - cues[0][0] == 1 else cues[0][1]


def _words(part: str) -> list[tuple[str, bool]]:
    """The words in lower case, each with whether it is capitalised; "isn't" is one, "it's" two."""
    found = []
    for match in _WORD.finditer(part):
        word = match[0].replace("’", "'")
        short = _SPLIT.search(word)
        if short and short[1] != "n't" and word.lower() != "let's":
            found.append((word[: short.start()].lower(), word[:1].isupper()))
            found.append((short[1][1:].lower(), False))
        elif word.lower() in _UNMARKED:  # "hes sending somebody"
            found += ((part, False) for part in _UNMARKED[word.lower()])
        else:
            found.append((word.lower(), word[:1].isupper() and word != "I"))
    return found


def _kind(
    tokens: Sequence[str], i: int, cues: Sequence[tuple[int, int]], *, at_start: bool
) -> int | None:
    """The direction that the word at i gives to the clause; None if it gives none.

    cues: those found before it. at_start: as in `_read`.
    """
    token = tokens[i]
    before = tokens[i - 1] if i else ""
    after = tokens[i + 1] if i + 1 < len(tokens) else ""
    where, so_far = cues[-1] if cues else (-9, COMING)
    governor = tokens[where] if cues else ""
    infinitive = before == "to"
    if token == "s":  # "he's visiting", "the last day's on", but "he's gone", "Ana's room"
        if after.endswith("ing") or after in _BETWEEN:
            return COMING
        if not after and not cues and not _PLACES & set(tokens[:i]):
            return COMING
        return COMING if before in ("it", "that", "he", "she", "there") else None
    if token in ("may", "can", "need", "plan", "hope") and before in _ATTRIBUTE:
        return None  # "a plan"
    if token == "ve":
        return UNKNOWN
    if token in _OPEN and not (token in ("like", "love") and governor in ("d", "would")):
        return COMING if after in ("like", "love") and token in ("d", "would") else UNKNOWN
    if token in ("like", "love"):
        return COMING
    if token == "invited" and governor != "had":  # "on Friday" may be the day of the asking
        return COMING if {"for", "to", "over", "round"} & set(tokens[i:]) else UNKNOWN
    if token in _DID:
        return PAST
    if token in _BE or token in _NOW or token in _FINITE:
        return so_far if token in ("be", "being", "due") and cues else COMING
    if token in _EITHER:
        return so_far if cues and (infinitive or i - where <= 3) else UNKNOWN
    if token == "got" and before in ("have", "has", "ve", "s"):
        return COMING
    if token == "got" and at_start and i == 0:
        return UNKNOWN  # "got the dentist on Friday": have got, or did get
    if (token in _WAS and before not in _ARTICLES) or _is_past_form(token, before):
        close = all(t in _BETWEEN or t.endswith("ly") for t in tokens[where + 1 : i])
        if cues and close:
            if governor == "s" and token != "been":
                return UNKNOWN  # "he's moved": has, or is
            if governor in _BE | _WILL | {"get", "gets", "getting"}:
                return so_far if token != "been" else PAST
            if governor == "have" and _WILL & set(tokens[max(0, where - 2) : where]):
                return COMING  # "we will have finished by"
            if so_far == UNKNOWN and governor != "ve":
                return UNKNOWN
        return None if token in _ONLY_PARTICIPLES and not (cues and close) else PAST
    if token.endswith("ing") and len(token) > 4 and token not in _NO_ING:
        return so_far
    if infinitive and cues and so_far == PAST and token not in ("the", "a", "my"):
        return UNKNOWN if governor in _INTENDED else None
    if token in _BASES or (token in _CALLS and at_start and before in ("", "please", "and")):
        if infinitive:
            return so_far if cues else UNKNOWN
        if not cues or i - where > 4:
            return COMING
        if governor in ("let", "made", "helped", "saw", "heard", "watched") or governor in _DID:
            return PAST
        return UNKNOWN if so_far == UNKNOWN else COMING
    return None


def _is_past_form(token: str, before: str) -> bool:
    """Whether a word ends as a past form does and is not an adjective: "my retired neighbour"."""
    return (
        token.endswith("ed") and len(token) > 3 and token not in _NO_ED and before not in _ATTRIBUTE
    )
