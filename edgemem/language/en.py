"""English words: sentences, stems, names, persons, denials, and what a question asks for.

Text of other languages is split at its own sentence marks; only those of its words that look like
English stop words count as such. Knows no calendar (`en_calendar`), and not what a fact says
(`en_facts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache

__all__ = [
    "FIRST_PERSON",
    "HEAD",
    "KEYWORD",
    "KIN",
    "NAME",
    "NEGATION",
    "STOP_WORDS",
    "as_of_now",
    "asks",
    "asks_for_next",
    "asks_for_now",
    "asks_for_past",
    "asks_if_sure",
    "asks_when",
    "content_words",
    "counts_times",
    "denied",
    "has_foreign_letter",
    "is_not_to_be_kept",
    "is_of_another",
    "is_of_listener",
    "is_of_speaker",
    "is_question",
    "is_specific",
    "is_unresolved",
    "is_verdict",
    "leans_back",
    "parts_of",
    "proper_names",
    "refers_back",
    "same_word",
    "sentence_starts",
    "sentences",
    "share",
    "tells_an_end",
    "without_pronoun",
    "without_vocatives",
    "word_spans",
    "words",
]


def having(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a text has a match of the pattern, in any case."""
    form = re.compile(pattern, re.I)
    return lambda text: form.search(text) is not None


# -- turns -----------------------------------------------------------------------------------

HEAD = re.compile(
    r"[ \t]*+(?:\[[^\]\n]{1,40}\][ \t]*|[\d/.,: \t-]{6,22}(?:[ap]m)?[ \t]*[-–][ \t]*"
    r"|On [^,:\n]{5,20}, )?"
    r"(?:(?:\[[A-Z]+_\d+\]|\w[\w.'’-]*(?: [A-Z]\S*?){0,3})(?: said| was noted)?:(?=\s|\Z)"
    r"|(?<=\]))[ \t]*"
)
"""The prefix of a turn: a time, in brackets as in logs or in words as `on_day` writes it, and the
speaker: "Ana: ", "[2024-05-01 10:00] Ana Lima: ", "On 8 May 2023, [PERSON_1] said: "."""


# -- sentences -------------------------------------------------------------------------------

# A sentence ends at . ! ? before a space, at CJK marks anywhere, and at a line's end; but not
# after an abbreviation or an initial ("Dr. Ito", "J. Smith"). Here and below, a pattern begins with
# the match's first character and looks behind after it, so that the search skips other characters.
_END = re.compile(
    r"[.!?…。！？\n](?:(?<=\n)\n*|(?<=[。！？])|(?<!\b[Dd]r\.)(?<!\b[Mm]r\.)(?<!\b[Mm]s\.)"
    r"(?<!\bSt\.)(?<!\b[Mm]rs\.)(?<!\bvs\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\b[A-Z]\.)[\"')\]]*\s+)"
)
# Nor after these words or numbers before those: "Prof. Ito", "ca. 10", "3. May", "3.12. at 8". What
# comes before is in the left pattern, what follows in the right one.
_DOTTED = r"(?:[0-2]?\d|3[01])\.(?:0?\d|1[0-2])"
_TO_DAY = r"(?:on|the|by|due|until|till|from|am|vom|bis|zum|ab|der|el|al|den|(?<=day),?)"
_MONTH = r"(?:Jan|Feb|Mar|März|Apr|May|Mai|Jun|Jul|Aug|Sep|O[ck]t|Nov|De[cz])[a-z]*\b"
_NO_NAME = r"(?!(?:I|He|She|It|We|You|They|The|This|That|There|Then|And|But|So|My|In|On|At|When)\b)"
_RUNS_ON = [
    (re.compile(rf"(?:(?<![\w.,:'’])|(?<=day))(?:{before})\Z"), re.compile(after))
    for before, after in (
        (
            "Sr|Sra|Srta|Dra|Prof|Hr|Hrn|Fr|Rev|Capt|Sgt|Lt|Gen|Ing",
            rf"{_NO_NAME}[^\W\d_a-zß-öø-ÿ]",
        ),
        (r"bzw|inkl|exkl|evtl|ggf|z\.B|d\.h|u\.a|o\.ä", r"\w"),
        ("[Cc]a|[Aa]pprox|[Nn]r|[Tt]el|[Ee]xt|pp?|(?:at|in|bus|room|house) [Nn]o", r"\d"),
        (r"\d\d? ?(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)", r"[\da-z]"),
        (rf"{_TO_DAY} {_DOTTED}", r"[\da-z]"),
        (_DOTTED, r"\d\d?(?:[:.]\d\d|h\b)|(?:at|um|and|und|y|to|bis|with|mit|con|from|von)\b"),
        (rf"{_TO_DAY} [0-3]?\d", rf"{_MONTH}(?! (?:I|we|you|they|he|she|it)\b)"),
        (r"[0-3]?\d", rf"{_MONTH}(?:\Z|[.,;:!?)]| (?:\d|(?:at|um|and|und|to|bis|in|with|from)\b))"),
    )
]
_SHORT = 16  # characters of what does not end a sentence


def _ends(text: str) -> Iterator[re.Match[str]]:
    for end in _END.finditer(text):
        at, next_ = end.start(), end.end()
        before = text[max(0, at - _SHORT) : at]
        if (
            text[at] != "."
            or next_ != at + 2
            or not any(left.search(before) and right.match(text, next_) for left, right in _RUNS_ON)
        ):
            yield end


def sentences(text: str) -> list[str]:
    """The sentences of a text, stripped, without empty ones."""
    ends = list(_ends(text))
    starts = [0, *(end.end() for end in ends)]
    marks = [*(end.start() + 1 for end in ends), len(text)]  # without a quote after the mark
    return [part for a, b in zip(starts, marks, strict=True) if (part := text[a:b].strip())]


def sentence_starts(text: str) -> list[int]:
    """The offsets at which the sentences of a text begin, except the first sentence."""
    return [match.end() for match in _ends(text)]


def asks(text: str) -> bool:
    """Whether a text ends as a question does."""
    return text.rstrip("\"')”’ \t\n").endswith(("?", "？"))


_KEEP = r"(?:remember|save|store|keep|record|memori[sz]e|retain|log|note|write|hold on to)"
_KEPT = r"(?:remembered|saved|stored|kept|recorded|memori[sz]ed|retained|logged|noted|written)"
_YOUR_MEMORY = r"(?:your|ur|the) (?:memory|notes)"
# "this: …", "it, please", "that down", "what I say next"; not "that seat", "it on the table".
_THIS = (
    r"(?:(?:any(?:thing)? |nothing )?(?:of )?(?:this|that|it|these|those)"
    r"(?: one| message| chat| conversation)?(?: down)?(?= ?(?:$|[.,;:!?)–—-]|"
    r"(?:about me|anywhere|please|pls|but|ok|okay|either|for me|i['’]?m|i"
    r"|(?:in|to|from) (?:(?:your|ur|the) )?(?:memory|notes))\b))"
    r"|the following\b|(?:that|what|any(?:thing)?) i(?:['’]m|['’]ll)? (?:just |am |will )?"
    r"(?:say|said|saying|tell|told|telling|typed?)\b)"
)
_NOT = r"(?:do not|don['’]?t)"
is_not_to_be_kept = having(
    r"(?:^|[.!?,;:\n–—-] ?|\b(?:please|pls|and|but|so|just|ok|okay) )"
    rf"(?:(?:please|pls|just|so|but|and) ){{0,2}}(?:(?:{_NOT}|no need to"
    r"|(?:you|u) (?:(?:must|should|need) not|(?:must|should|need)n['’]?t|are not to)"
    rf"|(?:can|could|would) (?:you|u) (?:please )?not|i {_NOT} want (?:you|u) to"
    rf"|(?:i['’]?d|i would) rather (?:you|u) (?:didn['’]?t|did not)) {_KEEP} ?{_THIS}"
    rf"|{_NOT} (?:store|save)(?= ?(?:$|[.!]))"
    rf"|{_NOT} (?:add|put) (?:this|that|it|any of this) (?:in|to|into) {_YOUR_MEMORY}\b"
    rf"|i {_NOT} want (?:this|that|it) {_KEPT}\b|forget (?:this|that) (?:right away|at once)\b"
    r"|(?:this|that|it)(?: message)?(?: is|['’]s)? (?:not|isn['’]?t|shouldn['’]?t) (?:to )?be "
    rf"{_KEPT}\b"
    rf"|(?:(?:this|that) is )?(?:only |just )?(?:not (?:to be {_KEPT}|for {_YOUR_MEMORY})"
    r"|off the record(?! player| shop| store| label)"
    rf"|(?:keep|leave) (?:this|that|it)(?: one)? out of {_YOUR_MEMORY})\b)"
)
"""Whether a text says that it is not to be kept: "don't remember this: …", "off the record"."""


tells_an_end = having(
    r"\A(?:that|this|it)(?:['’]?s not| is not| isn['’]?t) (?:[\w'’]+ ){1,6}any ?more\W*\Z"
)
"""Whether a text tells only of one thing that it is over: "That's not my address anymore." None of
the 9,390 labelled messages of models/chats does so."""


def is_question(text: str) -> bool:
    """Whether every sentence of a text asks."""
    if "?" not in text and "？" not in text:
        return False
    parts = sentences(text)
    return bool(parts) and all(map(asks, parts))


# -- words -----------------------------------------------------------------------------------

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_POSSESSIVE = ("'s", "’s")

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below
    between both but by can could did do does doing down during each few for from further had has
    have having he her here hers him his how i if in into is it its just me more most my myself no
    nor not now of off on once only or other our ours out over own same she should so some such
    than that the their theirs them then there these they this those through to too under until up
    us very was we were what when where which while who whom why will with would you your yours
    i'm i've i'd i'll it's that's he's she's we're we've they're you're you've don't didn't doesn't
    isn't wasn't aren't can't won't let's what's""".split()
)
NUMBER_WORDS = tuple(
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred".split()
)
_TENS = {word: 10 * n for n, word in enumerate(NUMBER_WORDS[19:27], 2)}
_VALUES = {word: n for n, word in enumerate(NUMBER_WORDS[:19], 1)} | _TENS
A_NUMBER = (
    rf"(?:(?:{'|'.join(_TENS)})[- ](?:{'|'.join(NUMBER_WORDS[:9])})\b|(?:{'|'.join(_VALUES)})\b)"
)
"""A regular expression: a number below 100 in words."""


def number(text: str) -> int:
    """The value of digits or of a number in words. Raises KeyError on what only looks like one."""
    parts = re.split("[- ]", text.lower())
    return int(text) if text.isdecimal() else sum(_VALUES[part] for part in parts)


def words(text: str) -> list[str]:
    """Lower-case words and numbers in order, possessive endings dropped."""
    return [w[:-2] if w.endswith(_POSSESSIVE) else w for w in _WORD.findall(text.lower())]


def content_words(text: str) -> list[str]:
    """Words that are not stop words."""
    return [w for w in words(text) if w not in STOP_WORDS]


_SPAN = re.compile(r"['’]s\b|\w+(?:[-.&'’](?!s\b)\w+)*|[^\w\s]")


def word_spans(text: str) -> list[tuple[int, int]]:
    """The [start, end) characters of each word and mark; a possessive ending has its own span."""
    return [match.span() for match in _SPAN.finditer(text)]


_JOINT = re.compile(r"[,;:.?!()]|\b(?:and|n|but|so|that|with|about|how|saying|in which)\b", re.I)


def parts_of(text: str) -> list[str]:
    """The parts of a request that may each be searched for: two content words or more, between
    marks and conjunctions; none if there is one alone.

    >>> parts_of("Tell Bo about the broken lift and how late the mechanic comes")
    ['Tell Bo', 'the broken lift', 'late the mechanic comes']
    """
    between = (part.strip() for part in _JOINT.split(text))
    found = [part for part in between if len(content_words(part)) > 1]
    return found if len(found) > 1 else []


@lru_cache(maxsize=1 << 14)
def stem(word: str) -> str:
    """The stem of a lower-case word, perhaps no word itself: "marri" for marry and married.

    Source: Snowball's English stemmer (Porter 2).
    """
    from snowballstemmer import stemmer  # late: it loads the stemmers of all languages

    stemmed: str = stemmer("english").stemWord(word)  # a new one: stemmers are not thread-safe
    return stemmed


def same_word(word: str, others: Collection[str]) -> bool:
    """Whether `word` or another form of it (play, plays, playing) is among `others`.

    All are lower case. Stemming is slow: only others with the same first two letters are stemmed.
    """
    if word in others:
        return True
    near = [other for other in others if other[:2] == word[:2]]
    return bool(near) and stem(word) in map(stem, near)


def share(asked: Collection[str], sentence: str) -> float:
    """The share of the words asked for that a sentence has, in [0, 1]."""
    said = set(words(sentence))
    return sum(same_word(word, said) for word in asked) / max(1, len(asked))


KEYWORD = re.compile(
    r"\b(?:but|because|although|though|however|therefore|thus|hence|since|so|if|unless|until|while|"
    r"whereas|before|after|when|then|instead|despite|except|only|think|believe|know|maybe|perhaps|"
    r"probably|must|should|cannot|not|never|no)\b|n['’]t\b"
)
"""Words that turn a sentence or say how sure its speaker is, in lower-case text. CoreMem 3.3 names
"but, because, although" and leaves the rest to an appendix, which has no list."""

# -- denials ---------------------------------------------------------------------------------

NEGATION = re.compile(
    r"(?=[ncw])(?:\b(?:not|no|never|none|neither|nor|cannot|without)|n['’]t)\b", re.I
)
is_negated = having(NEGATION.pattern)
"""Whether a text says "not" in some English way."""
_CLAUSE_END = re.compile(r"[,;:.!?]|\bbut\b", re.I)


def denied(text: str) -> list[list[str]]:
    """For each "not" of a text, the content words from it to its clause's end; no empty lists."""
    clauses = (_CLAUSE_END.split(rest, 1)[0] for rest in NEGATION.split(text)[1:])
    return [found for clause in clauses if (found := content_words(clause))]


# -- persons and names -----------------------------------------------------------------------

FIRST_PERSON = tuple(
    "i i'm i've i'd i'll me my mine myself we we're we've we'd we'll us our ours".split()
)
"""The words for I, then the words for we."""
_I_AND_MY = FIRST_PERSON[: FIRST_PERSON.index("we")]
_SECOND_PERSON = "you your yours".split()


def _any_of(said: Collection[str]) -> Callable[[str], bool]:
    return having(rf"\b(?:{'|'.join(said)})\b".replace("'", "['’]"))


is_of_speaker = _any_of(FIRST_PERSON)
"""Whether a text says I or we."""
is_of_another = _any_of("he hes him his she shes her hers they theyre them their".split())
"""Whether a text says he, she or they."""
is_of_listener = _any_of([*_SECOND_PERSON, "yourself", "ya", "y'all"])
"""Whether a text says you."""
is_unresolved = _any_of([*_I_AND_MY, *_SECOND_PERSON, "this"])
"""Whether a text has a word that only its speaker and listener understand: I, you, this."""

CAPITAL = r"[^\W\d_a-zß-öø-ÿ]"
"""A letter that may begin a name, in any script."""
NAME = re.compile(r"[A-Z](?<!\w.)(?<!^.)(?<!\n.)(?<![.!?…\"] .)[\w'’]+")
"""A word with a capital that begins no sentence."""


_SELF = frozenset(("i", "i'm", "i'll", "i'd", "i've"))


def proper_names(text: str) -> set[str]:
    """The words of the names in a text; not of those that begin a sentence."""
    return {word for name in NAME.findall(text) for word in words(name)} - _SELF


_FOREIGN = r"(?=[^\x00-\x7f])\w"  # no emoji
has_foreign_letter = having(_FOREIGN)
"""Whether a text has a letter of another alphabet, or one with an accent."""
is_specific = having(rf"\d|{_FOREIGN}|(?<=[\w,;:'’] )(?-i:[A-Z])\w")
"""Whether a text has a digit, a letter of another alphabet, or a name. A name is a capital after a
word or comma; after a full stop or dash, a capital may begin a sentence or a line of a list."""

_VOCATIVES = (
    re.compile(r"(?P<before>(?:^|(?<=[.!?] )))(?P<name>[A-Z]\w{2,}), "),
    re.compile(
        r"(?P<before>\b(?i:hey|hi|hello|bye|thanks|thank you|morning|evening|night|oh|ah|aw+|wow"
        r"|yeah|yep|yes|sure|ok|okay|no|nope|congrats|congratulations|absolutely|definitely|totally"
        r"|exactly|awesome|cool|great|right|true|agreed)),? (?P<name>[A-Z]\w{2,})(?=[,.!?])"
    ),
    re.compile(r"(?P<before>), (?P<name>[A-Z]\w{2,})(?=[.!?])"),
)

KIN = (
    r"(?:(?:step|grand|great-?grand|god|half[- ]|ex-?|"
    r"(?:best|old|little|big|older|younger|elder|twin|former|new|dear|good|close|late)\s){0,4}(?:"
    + "|".join(
        """mother father mom mum mama dad papa parent brother bro sister sis son daughter child
        kid baby boy girl twin wife husband spouse partner fianc[ée]e? boyfriend girlfriend
        friend mate buddy pal bestie cousin aunt auntie uncle niece nephew grandma grandpa
        granny nana grandmother grandfather grandson granddaughter in-law neighbou?r colleague
        co-?worker teammate boss manager supervisor mentor teacher professor tutor coach
        trainer doctor dentist nurse therapist lawyer landlord landlady roommate flatmate
        housemate classmate student client customer assistant babysitter nanny hairdresser
        plumber accountant pastor priest guest date crush""".split()
    )
    + r")(?:-in-law)?)"
)
"""A regular expression of words for people by their relation to another ("best friend", "boss")."""


_PRONOUN = re.compile(r"(?:his|her|their|its) (?=\w)", re.I)


def without_pronoun(name: str) -> str:
    """The name without its pronoun: "father" of "her father"; "" if it begins with none."""
    own = _PRONOUN.match(name)
    return name[own.end() :] if own else ""


def without_vocatives(text: str, is_other: Callable[[str], bool]) -> str:
    """A text without the names by which it addresses others: "Thanks!" of "Thanks, Ana!".

    is_other: whether a name is that of somebody who may be addressed.
    """

    def kept(found: re.Match[str]) -> str:
        return found["before"] if is_other(found["name"]) else found[0]

    for vocative in _VOCATIVES:
        text = vocative.sub(kept, text)
    return text


# -- what a question asks for ----------------------------------------------------------------

asks_when = having(
    r"\b(?:when|how (?:long|often)|(?:what|which) (?:date|day|week|month|year|time))\b"
)
"""Whether a question asks for a time."""
asks_for_now = having(
    r"\b(?:now|nowadays|these days|currently|at the moment|at present|today|still|latest|last)\b"
)
"""Whether a question is about how things are now, so that the newest memory is most relevant."""
asks_for_next = having(
    r"\A(?!.{0,200}\b(?:birthday|bday|anniversary)\b).{0,200}?"
    r"\b(?:when|(?:what|which) (?:date|day|week|month|time))\b.{0,200}?"
    r"\b(?:next|upcoming)\b(?! (?:to|door|of kin|day|week|weekend|month|year|spring|summer|autumn"
    r"|fall|winter|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b)"
)
"""Whether a question asks when something comes next, so that what is over is no answer. What comes
every year is over and comes again."""
asks_if_sure = having(
    r"\b(?:are|r) (?:you|u) (?:\w+ ){0,2}(?:sure|certain|positive) "
    r"(?!(?:that )?(?:you|u|of|or)\b)\w"
)
"""Whether a question asks if something that it names is really so: "Are you sure it's on Friday?"
Of the labelled messages of models/chats ten ask so, none about the assistant."""
counts_times = having(r"\bhow (?:often|many times)\b")
"""Whether a question asks how often something is or was."""
asks_for_past = having(r"\b(?:before|used to|previous(?:ly)?|former(?:ly)?|back then|old|first)\b")
"""Whether a question is about how things were before."""
_PRESENT = re.compile(r"\b(?:do|does|is|are|am|has|have|whats|wheres|whos)\b|['’]s\b", re.I)
_OF_A_TIME = re.compile(
    r"\b(?:did|was|were|had|used|will|would|should|could|can|going|next|last|ago|before|after|"
    r"until|till|since|tomorrow|tonight|today|yesterday|first|been|nowadays|now|currently|still|"
    r"these days|at present|at the moment|how long|(?:mon|tues|wednes|thurs|fri|satur|sun)day|"
    r"january|february|march|april|june|july|august|september|october|november|december|\d{4})\b",
    re.I,
)


def as_of_now(question: str) -> str:
    """A question about the present that names no time, with "now"; any other as it is.

    >>> as_of_now("Where does Tom live?"), as_of_now("Where did Tom live?")
    ('Where does Tom live now?', 'Where did Tom live?')
    """
    if _OF_A_TIME.search(question) or not _PRESENT.search(question):
        return question
    return f"{question.rstrip(' ?!.')} now?"


leans_back = having(r"\A(?:and |but |so )?(?:its?|this|that|these|those|they|there|he|she)\b")
"""Whether a sentence cannot be understood without the one before it: "It has two rooms."."""
is_verdict = having(r"\A(?:yes|no)\b")
"""Whether an answer says yes or no."""
refers_back = having(
    r"\A\W*+(?:(?:and|but|so|or|then|what about|how about)\b|(?:[\w'’]++\W*+){1,2}\Z)"
    r"|\b(?:he|she|it|they|him|her|them|his|hers|its|theirs?|that|these|those|ones?"
    r"|this(?! (?:week(?:end)?|month|year|morning|afternoon|evening|summer|autumn|winter|spring"
    r"|time|\w+day)\b)|(?<!\bis )(?<!\bare )(?<!\bwas )(?<!\bwere )there"
    r"|then|else|same|others?|another)\b"
)
"""Whether a question may be about what was said before it: "And how old is he?", "Since when?",
not "Who comes this week?", nor "Which keys are there?"."""
