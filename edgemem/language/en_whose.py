"""English: whose life a question asks for, and whose a text tells.

"I'm allergic to nuts" of a group chat tells what Ruth is allergic to, and nothing of the reader.

Knows texts; not who said them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from edgemem.language.en import KIN, content_words, having, same_word, sentences, words

__all__ = ["asks_of_asker", "says_of_self_instead", "tells_of_self"]

_FRAME = re.compile(
    r"^\W*(?:(?:please|can|could|would|will|do|did|you|ya|just|now|so|hey|and|but)\W+){0,4}"
    r"(?:tell|remind|show|give) me\b"
)
_I_OR_MY = re.compile(r"\b(?:i|im|i['’](?:m|ve|d|ll)|ive|my|mine|myself)\b")
_ANYBODY = re.compile(
    r"\b(?:who|whose|whos|any(?:one|body)|some(?:one|body)|every(?:one|body)|no(?:body| one)"
    r"|should|shall)\b"
)
_WHO_IS_MY = re.compile(r"\bwho(?:['’]?s| is| are| was| were)(?: the \w+ of)? my\b")
_SAYS = (
    r"(?:say|says|said|saying|tell|tells|told|write|wrote|mention(?:ed)?|thinks?|thought"
    r"|promised?|offer(?:ed)?|suggest(?:ed)?|recommend(?:ed)?|advised?|text(?:ed)?|ask(?:ed)?)\b"
)
_ANOTHER_SAYS = re.compile(rf"(?<!\bi )(?<!\bi have )(?<!\bi had )(?<!\bi ever )\b{_SAYS}")
_MY_KIN = re.compile(rf"\b(?:my|mine)\b(?: (?P<kin>{KIN})(?:s|['’]s)?\b)?", re.I)
_CLAUSE = re.compile(r"[,;:()]+|\s(?:and|but|so|because|-|–|—)\s", re.I)
_US = having(
    r"\b(?:you|your|yours|yourself|u|ur|ya|we|we['’](?:re|ve|d|ll)|us|our|ours|let['’]?s)\b"
)
_NEAR = 3  # words after "my" or "I" among which the thing that they speak of ends
_NEAR_CHARS = 100  # that hold them: the cost stays linear

# "my mother", "my mother's", "my best friend's"
_OWNER = re.compile(rf" {KIN}(?:s|['’]s)?\b|(?: \w+){{1,3}}?['’]s\b", re.I)
_AM = r"\b(?:im|i['’]m|i (?:am|was))\b"
_HAVE = r"\b(?:ive|i['’]ve|i (?:have|had))(?: got)?\b"
_HOW = (  # stands between "I" and its verb
    r"(?: (?:\w{4,}ly|also|always|ever|just|never|not|now|often|only|quite|so|sometimes|still|too"
    r"|very))*"
)
_A = r"(?: (?:an?|no|some|another|one|two|three))"
_OWN = re.compile(r"\b(?:my|mine)\b")
_STATE = re.compile(rf"(?:{_AM}|{_HAVE}){_HOW} (?P<one>\w+)")
_STATE_WITH_A = re.compile(rf"(?:{_AM}|{_HAVE}){_HOW}{_A}")
_I_AM_A = having(rf"^\W*(?:and |well |but )?{_AM}{_HOW} an? \w")
_BEING = having(_AM)
_DOES = re.compile(rf"(?:\bi(?:['’](?:ll|d)| will)?|{_AM}|{_HAVE}){_HOW} (?P<verb>\w+)")
_ASKED_VERB = re.compile(rf"\bi\b{_HOW} (?P<verb>\w+)")
_ASKED_BEING = having(r"\b(?:am|was) i(?:\W*\Z| (?:on|at|in|next|this|today|tomorrow|now)\b)")
_DID = having(r"\bdid\b")
_THE = ("the", "a", "an", "that", "this", "these", "those", "it", "them", "her", "his", "their")


def asks_of_asker(question: str) -> bool:
    """Whether a question asks for something of its asker that only their own "I" or "my" tells.

    Who does something, what another said, and what one should do, others tell too.

    >>> asks_of_asker("Who is my dentist?"), asks_of_asker("Who is coming to my party?")
    (True, False)
    >>> asks_of_asker("What did they say about my car?"), asks_of_asker("Who told me of the flat?")
    (False, False)
    """
    asked = _FRAME.sub("", question.lower())
    if not _I_OR_MY.search(asked):
        return False
    if _ANYBODY.search(asked) and not _WHO_IS_MY.search(asked):
        return False
    return not _ANOTHER_SAYS.search(asked)


def tells_of_self(text: str, question: str) -> bool:
    """Whether a text surely tells of its own speaker what a question asks of its asker.

    So do those of its clauses that have a word of the question, if each says "my" of it, or "I am"
    or "I have", or says "I" with the verb that is asked for. Where no clause has one, "I'm a nurse"
    does. What somebody did with a thing is as true of the asker's. A sister may answer "When does
    my sister come?" herself; of such a question only "my sister" counts.

    >>> tells_of_self("I'm allergic to nuts, can you bring fruit?", "What am I allergic to?")
    True
    >>> tells_of_self("I saw the passport on the shelf.", "Where is my passport?")
    False
    >>> tells_of_self("I land at six.", "When does my sister land?")
    False
    """
    asked = _FRAME.sub("", question.lower())
    kin = [found["kin"] for found in _MY_KIN.finditer(asked)]
    if all(kin) and not _I_OR_MY.search(_MY_KIN.sub("", asked)):
        return any(re.search(rf"\bmy {re.escape(one)}\b", text, re.I) for one in kin)
    sought = content_words(question)
    clauses = [
        clause.strip()
        for sentence in sentences(text.lower())
        for clause in _CLAUSE.split(sentence)
        if words(clause)
    ]
    near = [
        _is_own(clause, sought) or _does_what_is_asked(clause, asked, sought)
        for clause in clauses
        if any(same_word(word, words(clause)) for word in sought)
    ]
    if near:
        return all(near)
    if any(_does_what_is_asked(clause, asked, sought) for clause in clauses):
        return True
    return bool(clauses) and all(_I_AM_A(clause) for clause in clauses)


def _is_own(clause: str, sought: Collection[str]) -> bool:
    """Whether a clause says my of a word, or I am or I have. "My wife's car" is not the speaker's,
    and "I have moved the car" says nothing of whose it is."""
    if _US(clause):
        return False
    own = [word for found in _OWN.finditer(clause) for word in _of_mine(_after(clause, found))]
    own += [found["one"] for found in _STATE.finditer(clause)]
    for found in _STATE_WITH_A.finditer(clause):
        own += words(_after(clause, found))[:_NEAR]
    return any(same_word(word, own) for word in sought)


def _does_what_is_asked(clause: str, asked: str, sought: Collection[str]) -> bool:
    """Whether a clause says I with the verb that a question asks for: "I drive a Volvo".

    "I know the plumber" tells as much of the plumber as of the speaker, and so does "I parked the
    car" if the question is for something past.
    """
    if _US(clause):
        return False
    if _ASKED_BEING(asked) and _BEING(clause):
        return True
    verbs = {found["verb"] for found in _ASKED_VERB.finditer(asked)}
    for found in _DOES.finditer(clause):
        if not same_word(found["verb"], verbs):
            continue
        after = words(_after(clause, found))
        with_the = [i for i, word in enumerate(after[:_NEAR]) if word in _THE]
        if not with_the:
            return True
        things = after[with_the[0] + 1 :][:_NEAR]
        if not _DID(asked) and not any(same_word(word, things) for word in sought):
            return True
    return False


def says_of_self_instead(text: str, question: str, name: Collection[str]) -> bool:
    """Whether a text says of its own speaker, after "I" or "my", what a question asks after a name.

    name: the words of the name, lower case. A text that has one of them does not, nor does one that
    may mean the same person: "my mother's tea".

    >>> says_of_self_instead("My favourite tea is mint.", "What is Ruth's favourite tea?", ["ruth"])
    True
    >>> says_of_self_instead("I booked the dinner.", "When is the dinner with Ruth?", ["ruth"])
    False
    """
    if not {*name}.isdisjoint(words(text)):
        return False
    asked = words(question)
    after = {asked[i + 1] for i, word in enumerate(asked[:-1]) if word in name}
    after &= {*content_words(question)}
    return bool(after) and any(same_word(word, after) for word in _of_self(text))


def _of_self(text: str) -> Iterator[str]:
    """The words near after each I or my of a text."""
    said = text.lower()
    for found in _I_OR_MY.finditer(said):
        after = _after(said, found)
        yield from _of_mine(after) if _OWN.match(found[0]) else words(after)[:_NEAR]


def _of_mine(after: str) -> list[str]:
    """The words of the thing that stands after "my", up to the one who has it in turn."""
    owner = _OWNER.match(after)
    return words(owner[0] if owner else after)[:_NEAR]


def _after(text: str, found: re.Match[str]) -> str:
    """What stands near after a match."""
    return text[found.end() : found.end() + _NEAR_CHARS]
