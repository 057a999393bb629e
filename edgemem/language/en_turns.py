"""English: what a message takes from the turns before it, and which of these, or which item of a
list in them, it asks for.

"How old is she?" asks of the one person whom the question before named, "And for Tom?" what was
asked before. Knows texts; no turn, and not who is a person in a memory.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from edgemem.language.en import (
    CAPITAL,
    KIN,
    NUMBER_WORDS,
    STOP_WORDS,
    content_words,
    having,
    words,
)
from edgemem.language.en_calendar import A_MONTH, DAYS, MONTHS, SPELLED_NTH, spelled_nth

__all__ = ["LAST", "asks_of_another", "asks_to_change", "begins_with_preface", "body", "greets"]
__all__ += ["has_pronoun", "may_name", "meant", "one_named", "place_asked", "question_asked"]
__all__ += ["reply_asked", "says_change", "to_listener", "turn_asked", "with_named"]

_POSSESSIVE = ("'s", "’s")

# -- what was meant -------------------------------------------------------------------------

_NOT_THAT = (
    r"\W*(?:(?:oh|oops|sorry|no|nope|well|wait|not (?:that one|mine|hers?|his|theirs))\b\W*)*"
)
_MEANT = re.compile(
    rf"{_NOT_THAT}i(?:['’]?m| am| was)? (?:meant?|(?:asking|talking) about) "
    r"(?!to\b)(?P<what>.+?)\W*"
    rf"|{_NOT_THAT}(?P<first>.+?),? i meant?\W*",
    re.I,
)
_LONGEST_MEANT = 200  # characters
_OWNER = re.compile(
    r"\b(?:(?:my|our|the) )?(?!(?:what|who|when|where|how|that|it|there|here)\b)\w+['’]s(?= \w)",
    re.I,
)
_OWNED = re.compile(r"\b(?:the|my|our|his|her|their)\b(?= \w)", re.I)
_CLAUSE = re.compile(
    r"\b(?:who|what|when|where|which|how|why|is|are|was|were|do|does|did|has|have|can|you|u|that|it"
    r"|tell)\b|['’](?:re|ve|ll|d|t)\b|[?;:.!]\W*\w",
    re.I,
)


def meant(text: str, question: str) -> str:
    """A question with what a fragment after it says was meant; "" if the fragment has another form.

    >>> meant("no, I meant Shona's", "When is my brother's birthday?"), meant("I mean Tim", "")
    ("When is Shona's birthday?", 'And Tim?')
    """
    found = _MEANT.fullmatch(text) if len(text) <= _LONGEST_MEANT else None
    said = (found["what"] or found["first"]) if found else ""
    if not said or _CLAUSE.search(said):
        return ""
    owner = _OWNER.search(question) or _OWNED.search(question)
    if owner is None or not said.endswith(_POSSESSIVE):
        return f"And {said}?"
    return f"{question[: owner.start()]}{said}{question[owner.end() :]}"


# -- the one who is meant --------------------------------------------------------------------

_TITLE = r"(?:(?:Dr|Mrs?|Ms|Miss|Prof|Aunt|Uncle)\.? )"
_A_NAME = rf"(?-i:{_TITLE}?{CAPITAL}[\w-]+(?: {CAPITAL}[\w-]+){{0,2}})"
_OWN_KIN = rf"(?:my|our) {KIN}\b(?: {_A_NAME})?"
_SOMEBODY = re.compile(rf"\b(?:{_OWN_KIN}|{_A_NAME})", re.I)
_THEIR_KIN = re.compile(rf"\w['’]s? {KIN}\b", re.I)
_NO_PERSON = re.compile(
    r"\b(?:the|a|an|in|at|from|near|into|around|across|called|read|reading|watch|watching"
    r"|(?:fl(?:y|ying|ight)|go(?:ing)?|went|travel\w*|trips?|mov(?:e|ed|ing)|back|driv(?:e|ing)|way)"
    r" to)\s+\Z",
    re.I,
)
_WHO_DID = re.compile(r"\bwho(?:se|m)?\b(?!['’]s\b| (?:is|was|are|were)\b)", re.I)
_BEGINS = re.compile(r"(?:^|[.!?…\n:;\"“”(])\s*\Z")
_NO_NAMES = STOP_WORDS | {name.lower() for name in (*MONTHS, *DAYS)} | {"christmas", "easter"}
_ASKING = frozenset("who what where when how why that there here it he she let".split())
_TITLED = re.compile(_TITLE)
_SHORT = 5  # words of a text whose first word may be a name
_TO_ME = re.compile(r"\s+(?:me|us|about)\b", re.I)  # "Tell me about Ana."
_FEMALE = frozenset(
    "mother mum mom mama sister sis daughter girl wife girlfriend aunt auntie niece grandma granny"
    " nana grandmother granddaughter landlady".split()
)
_MALE = frozenset(
    "father dad papa brother bro son boy husband boyfriend uncle nephew grandpa grandfather"
    " grandson landlord".split()
)
_SHE, _HE = r"she|hers?", r"he|him|his"
_PRONOUN = re.compile(rf"\b(?:(?P<she>{_SHE})|(?P<he>{_HE}))\b(?P<own>['’]s)?", re.I)
# "her" and "his" before these, or before a mark, own nothing.
_NOT_OWNED = re.compile(
    r"\W*\Z|\s*[,.;:!?]|\s+(?:a|an|the|and|or|but|for|to|in|on|at|with|about|from|of|by|as|if|when"
    r"|that|this|these|some|something|anything|now|again|today|tonight|tomorrow|yesterday|next|last"
    r"|back|up|out|before|after|then|there|here|so|is|was|are|will|do|does|did)\b",
    re.I,
)


has_pronoun = having(_PRONOUN.pattern)
"""Whether a text says he or she."""


def one_named(text: str, no_people: Collection[str] = ()) -> str:
    """The one person whom a text names, as it names them; "" if it names none or several.

    no_people: names in lower case of what is no person. What stands behind "the" or "in" is none.

    >>> one_named("What is Kamal's job?"), one_named("Who is my sister Ana?")
    ('Kamal', 'my sister Ana')
    >>> one_named("Tell me about Ana.")
    'Ana'
    >>> one_named("Where do Ana and Tom live?"), one_named("Is Rory's baby well?")
    ('', '')
    """
    if _THEIR_KIN.search(text) or _WHO_DID.search(text):
        return ""
    found: dict[str, str] = {}
    for match in _SOMEBODY.finditer(text):
        name, before = match[0], text[: match.start()]
        if not name.lower().startswith(("my ", "our ")):
            own = text[match.end() :].startswith(_POSSESSIVE)
            first, _, rest = name.partition(" ")
            if _BEGINS.search(before) and not _TITLED.match(name):
                if rest:  # "Is Ana"
                    before, name, first = f"{before}{first} ", rest, rest.split()[0]
                elif not own and (len(text.split()) >= _SHORT or _TO_ME.match(text, match.end())):
                    continue
            if first.lower() in _NO_NAMES or (own and first.lower() in _ASKING):
                continue
            if name.lower() in no_people or _NO_PERSON.search(before):
                continue
        found.setdefault(name.lower(), name)
    return next(iter(found.values())) if len(found) == 1 else ""


def may_name(text: str) -> bool:
    """Whether a text has a word that may be a name, or kin of the user's."""
    return _SOMEBODY.search(text[:1].lower() + text[1:]) is not None


def with_named(text: str, name: str) -> str:
    """A text with a name for its "he" or "she"; "" if it has neither or both, names somebody
    itself, or if the name is of the other kind.

    >>> with_named("How old is she?", "Posy"), with_named("What is her cat called?", "Ana")
    ('How old is Posy?', "What is Ana's cat called?")
    """
    found = [*_PRONOUN.finditer(text)]
    she = any(match["she"] for match in found)
    kin = {*content_words(name)}
    wrong = kin & (_MALE if she else _FEMALE)
    if not (name and found) or wrong or (she and any(m["he"] for m in found)):
        return ""
    if may_name(text):
        return ""

    def named(match: re.Match[str]) -> str:
        said, after = match[0].lower(), text[match.end() :]
        owns = said in ("his", "her") and not _NOT_OWNED.match(after)
        return f"{name}'s" if owns or said == "hers" or match["own"] else name

    return _PRONOUN.sub(named, text)


_ONE = rf"(?:{_OWN_KIN}|{_A_NAME})"
_OF_ANOTHER = re.compile(
    r"\W*(?:(?:and|but|so|or|ok|okay|then|what about|how about)\b\W*)+"
    r"(?:(?:for|of|with|to|about) )?"
    rf"(?P<who>{_ONE}(?:,? (?:and|or) {_ONE})?)(?P<own>['’]s)?\W*",
    re.I,
)


def asks_of_another(text: str) -> str:
    """Whom a message names that asks of somebody else what was asked before; "" for others.

    >>> asks_of_another("And for Walter?"), asks_of_another("And when is Tim's?")
    ('Walter', '')
    """
    found = _OF_ANOTHER.fullmatch(text)
    who = found["who"] if found else ""
    return "" if who.split()[:1] and who.split()[0].lower() in _NO_NAMES - {"my", "our"} else who


# -- what a message wants of the answer before it --------------------------------------------

asks_to_change = having(
    r"\A\W*(?:(?:no|nope|nah|and|but|oh|please|ok|okay)\b\W*)*"
    r"(?:(?:don['’]?t|do not|never) (?:mention|say|include|use|call|write|put|add|sign)\b"
    r"|(?:not|no) [^.!?]{1,40}[.!?,;]+ ?(?:something|anything|someone|another) (?:else|one)\b"
    r"|(?:something|anything) else\b(?! (?:i|to)\b)"
    r"|(?:i (?:liked|prefer(?:red)?) )?the (?:first|second|third|previous|earlier|old|original"
    r"|other) (?:version|one|draft|text)(?: (?:was|is) (?:better|nicer|best)| more| better)?\W*\Z)"
)
"""Whether a message asks for a change of what was written or advised just before."""
says_change = having(r",? so (?:please )?change (?:it|that)\b\W*\Z")
"""The same of a message that no other kind of request ends as."""
_TO_LISTENER = {
    "i": "you",
    "i'm": "you're",
    "am": "are",
    "my": "your",
    "me": "you",
    "mine": "yours",
}


def to_listener(text: str) -> str:
    """The words of a text as its listener says them again.

    >>> to_listener("When is my dentist?"), to_listener("When is your dentist?")
    ('when is your dentist', 'when is your dentist')
    """
    return " ".join(_TO_LISTENER.get(word, word) for word in words(text))


_SURE = r"\A\W*(?:sure|certainly|of course|absolutely|okay|ok|here)\b[^\n]{0,120}"
_PREFACE = re.compile(rf"{_SURE}:[ \t]*\n\s*", re.I)
begins_with_preface = having(rf"{_SURE}\Z")
"""Whether an unfinished text may be the line before a written text that says what it is."""


def body(text: str) -> list[str]:
    """The words of a written text, without a line before it that says what it is.

    >>> body("Sure, here's a warmer version:\\n\\n---\\n\\nDear Ana!")
    ['dear', 'ana']
    """
    return words(_PREFACE.sub("", text))


greets = having(
    r"\A\W*(?:(?:good )?(?:morning|afternoon|evening)|hello|hi|hey|hiya)?(?: (?:there|again))?\W*"
    r"(?:and )?(?:how (?:are|r) (?:you|u|ya)(?: (?:doing|feeling|getting on|keeping))?"
    r"|how(?:['’]?s| is) (?:it going|life|everything|your day))"
    r"(?:,? (?:today|tonight|now|then|this (?:morning|afternoon|evening)|so far|my friend))*\W*\Z"
)
"""Whether a message asks how the assistant is, and nothing else."""


# -- which turn is asked for -----------------------------------------------------------------

_REPLY = re.compile(
    r"\W*(?:(?:and|but|so|ok|okay|wait|sorry)\b\W*)*(?:what|which(?P<which>(?: \w+){1,2}))"
    r"(?: (?:was|is) it (?:that )?| (?:else )?(?:did|have|had) )you (?:(?:just|first|last) )?"
    r"(?:suggest|recommend|propose|advise|say|tell me|write|answer)(?:e?d)?\b"
    r"(?: (?:just now|a moment ago|before|earlier|again))*"
    r"(?: (?:for|about|on|as|to) (?P<what>.+?))?"
    r"(?: (?:just now|a moment ago|before|earlier|again))*\W*",
    re.I,
)


def reply_asked(question: str) -> str | None:
    """What a question names that asks for an answer of this conversation: "" if it names nothing,
    None if it asks for no answer.

    >>> reply_asked("Which book did you recommend for Ana?"), reply_asked("What did I say?")
    ('book Ana', None)
    """
    asked = _REPLY.fullmatch(question)
    return asked and " ".join(part.strip() for part in asked.group("which", "what") if part)


_TOLD = "messages?|words?|sa(?:id|y)|t(?:ell|old)|wr[io]te|written|typed?|sen[dt]|correct(?:ed)?"
_ASKED = "ask(?:ed)?|questions?"


def _turn(verbs: str) -> re.Pattern[str]:
    """The form of a question for the speaker's first or last turn, by these words for a turn."""
    return re.compile(
        rf"(?=.*\b(?:i|my|i['’]?ve)\b)(?=.*\b(?:{verbs})\b)"
        r"(?=.*\b(?:(?P<first>first)|last|just)\b)"
        r"\W*(?:(?:and|so|but|ok|wait|hey)\W+)*what(?:['’]?s)? (?:(?:is|was|were|did|do|have|i"
        rf"|i['’]?ve|my|the|very|first|last|just|things?|that|{verbs}|you|to|in|this|chat"
        r"|conversation|here|now|today)\b\W*)+",
        re.I,
    )


_TURN, _QUESTION = _turn(_TOLD), _turn(_ASKED)


def turn_asked(question: str) -> int | None:
    """The place of the speaker's turn that a question asks for, 0 or -1; None if it asks for none.

    >>> turn_asked("What was my first message?"), turn_asked("What did I just tell you?")
    (0, -1)
    """
    asked = _TURN.fullmatch(question)
    return None if asked is None else 0 if asked["first"] else -1


def question_asked(question: str) -> int | None:
    """The place of the speaker's question that a question asks for, 0 or -1; None if it asks for
    none.

    >>> question_asked("What did I ask you first today?"), question_asked("What did I just ask?")
    (0, -1)
    """
    asked = _QUESTION.fullmatch(question)
    return None if asked is None else 0 if asked["first"] else -1


# -- which item of a list is asked for ---------------------------------------------------------

LAST = -1

_WORDS = NUMBER_WORDS[:20]
_NUMBER = rf"(?P<number>\d{{1,2}}|{'|'.join(_WORDS)})\b(?![-.:%/]\d| ?(?:%|[ap]\.?m\b))"
_NTH = rf"\b(?:(?P<digits>\d{{1,2}})(?:st|nd|rd|th)|(?P<spelled>{SPELLED_NTH}))\b"
_NO_NTH = rf"(?! (?:(?:of )?(?:{A_MONTH})|of|time|floor|birthday|anniversary|i|we|you|when)\b)"
_NO_LAST = (
    "(?! (?:i|we|you|time|night|week|month|year|spring|summer|autumn|fall|winter|chat|conversation|"
    rf"session|{'|'.join(MONTHS)})\b)"
)
_NO_ITEM = (
    rf"(?!(?:{A_MONTH}|in|of|for|at|to|by|the|my|about|page|age|bus|size|room|gate|flight)\b)"
)
_ENDS = r"(?! (?!(?:in|of|on|from|again)\b)\w)"
# An ordinal may count anything; such a question also names a list, or who made it.
_COUNTING = (rf"{_NTH}{_NO_NTH}", rf"\b(?P<last>last|final)\b{_NO_LAST}")
_FORMS = tuple(
    (re.compile(form, re.I), form in _COUNTING)
    for form in (
        rf"\b(?:number|no\.|nr\.?|item|#) ?{_NUMBER}",
        *_COUNTING,
        rf"\b{_NO_ITEM}[a-z]{{3,}} (?!one\b){_NUMBER}{_ENDS}",  # "step 7"
    )
)
_SAID = (
    "gave|give|named|offer(?:ed)?|suggest(?:ed)?|wrote|told|propos(?:ed?)|recommend(?:ed)?|"
    "mention(?:ed)?|said|say|put|made|picked|had"
)
_OF_A_LIST = re.compile(
    rf"\b(?:your|list(?:ed)?|item|you (?:\w+ )?(?:{_SAID})|"
    rf"of the (?:\d+|{'|'.join(_WORDS[1:])}))\b",
    re.I,
)
_AMOUNT = re.compile(r"\bhow (?:many|much|old|long|far|often)\b", re.I)


def place_asked(question: str) -> int | None:
    """The place of the item that a question asks for, from 1, or LAST; None if it asks for none.

    >>> place_asked("What was the 7th job on the list you gave me?")
    7
    """
    for form, counting in () if _AMOUNT.search(question) else _FORMS:
        found = form.search(question)
        if found is None or (counting and not _OF_A_LIST.search(question)):
            continue
        named = found.groupdict()
        if named.get("last"):
            return LAST
        if named.get("spelled"):
            return spelled_nth(named["spelled"])
        number = named.get("digits") or named["number"]
        return (int(number) or None) if number.isdigit() else 1 + _WORDS.index(number.lower())
    return None
