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
_SELF = having(r"\b(?:i|im|i['’](?:m|ve|d|ll)|ive|me|my|mine|myself)\b")
_US = having(
    r"\b(?:you|your|yours|yourself|u|ur|ya|we|we['’](?:re|ve|d|ll)|us|our|ours|let['’]?s)\b"
)
_NEAR = 3  # words after "I" or "my" among which what is said of oneself begins


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
    """Whether a text tells of its own speaker what a question asks of its asker.

    So do those of its clauses that have a word of the question, or the whole text if none has one,
    where the sentence says I or my, and the clause neither you nor we. A sister may answer "When
    does my sister come?" herself; of such a question only "my sister" counts.

    >>> tells_of_self("I'm allergic to nuts, can you bring fruit?", "What am I allergic to?")
    True
    >>> tells_of_self("I put your keys in the drawer.", "Where are my keys?")
    False
    >>> tells_of_self("I land at six.", "When does my sister land?")
    False
    """
    asked = _FRAME.sub("", question.lower())
    kin = [found["kin"] for found in _MY_KIN.finditer(asked)]
    if all(kin) and not _I_OR_MY.search(_MY_KIN.sub("", asked)):
        return any(re.search(rf"\bmy {re.escape(one)}\b", text, re.I) for one in kin)
    sought = content_words(question)
    near = [
        _SELF(sentence) and not _US(clause)
        for sentence in sentences(text)
        for clause in _CLAUSE.split(sentence)
        if any(same_word(word, words(clause)) for word in sought)
    ]
    return all(near) if near else _SELF(text) and not _US(text)


def says_of_self_instead(text: str, question: str, name: Collection[str]) -> bool:
    """Whether a text says of its own speaker, after "I" or "my", what a question asks after a name.

    name: the words of the name, lower case. A text that has one of them does not.

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
    said = words(text)
    for i, word in enumerate(said):
        if _SELF(word):
            yield from said[i + 1 : i + 1 + _NEAR]
