"""What an English fact says: about whom, which names, numbers and dates, and what it denies; whom a
question names.

Knows facts as text; knows neither who told them nor what becomes of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from edgemem.language.en import (
    CAPITAL,
    KIN,
    NAME,
    NUMBER_WORDS,
    STOP_WORDS,
    content_words,
    denied,
    having,
    is_negated,
    is_of_speaker,
    proper_names,
    same_word,
    words,
)
from edgemem.language.en_calendar import DAYS, MONTHS
from edgemem.language.en_quotes import asserts, values_denied
from edgemem.language.en_tense import begins_as_past

__all__ = [
    "Statement",
    "asked_about",
    "asked_whom",
    "asks_of_speaker",
    "denies_alike",
    "in_third_person",
    "is_introduced",
    "misreads",
    "named",
    "nicknames",
    "of_diarist",
    "of_others",
    "owned_by",
    "repeats_itself",
    "says_the_same",
    "tells_name",
    "with_known_people",
]

# "Ana", "Ana's brother" and "Mary Ann's brother's wife" are different people.
_OWNER = rf"(?:{CAPITAL}\w*\.?[ -])*[^\W_]+\.?"
_FIRST = re.compile(r"[^\W_]+")
_SUBJECT = re.compile(rf"(?:{_OWNER}['’]s? )*[^\W_]+")
_FIRST_NAME = re.compile(rf"(?:{CAPITAL}[\w-]+ ?)+")
_NAMED_OWNER = re.compile(rf"\b(?P<name>{CAPITAL}[\w-]+)['’]s\b")
_NOBODY = frozenset(
    "it he she that what there here who let where how when this one everyone nobody somebody today"
    " tomorrow".split()
)
_CAPITALISED = re.compile(rf"\b{CAPITAL}\w+")
_KIN = re.compile(rf"{KIN}s?")
_RELATIVE = rf"['’]s? ({KIN})s?\b"
_RELATIVES = re.compile(rf"{_OWNER}((?:{_RELATIVE}(?: {CAPITAL}\w+)*)+)")

# An absolute date, with the words that lead to it ("on", "in the week of").
_SHORT_MONTH = "|".join(month[:3] for month in MONTHS)
_WRITTEN_DATE = re.compile(
    rf"\b(?:(?:on|in|the (?:week|weekend) of) ){{0,3}}(?:(?:{'|'.join(DAYS)}) )?"
    rf"(?:\d{{1,2}} (?:{_SHORT_MONTH})\w* \d{{4}}|(?:{_SHORT_MONTH})\w* \d{{4}}|"
    r"\d{4}-\d\d-\d\d|(?:19|20)\d\d)\b",
    re.I,
)
_FILLERS = frozenset("a an the is are am be being has have do does".split())
_ENDING = r"(?:s|es|[b-z]?ing|e|y|ies)?"  # [b-z]: as in "running" and "studying"
_INFLECTED = re.compile(rf"(\w+?){_ENDING} \1{_ENDING}")

_THEIRS = rf"{KIN}s?|dogs?|cats?|pupp(?:y|ies)|kittens?|horses?|rabbits?|children"
_INSTEAD_OF = re.compile(r"\bnot (?:(?:the|at|on|for|in|about) )?[^\w\s]?(\d+)", re.I)
_NUMBER = re.compile(r"\d+")
_UNMARRIED = re.compile(r"(?:\bnot|\bnever|n['’]t)(?: \w+)? married\b|\bunmarried\b", re.I)
_MARRIAGE = re.compile(
    r"\b(?:marr\w+|marriage|wed\w*|wife|husband|spouse|engag\w+|fianc\w+|bride|groom|honeymoon"
    r"|(?:mother|father|sister|brother|parents)-in-law)\b",
    re.I,
)
_NAMED = re.compile(rf"\b\w+['’]s (?P<what>{_THEIRS}) (?=[A-Z]\w)")
_OWNED = re.compile(rf"\b(?:\w+['’]s|[Tt]heir|[Hh]is|[Hh]er) (?P<what>{_THEIRS})\b")
_SAME_KIN = tuple(
    frozenset(group.split())
    for group in (
        "mother mum mom mama mamma maman mammy mutter madre", "father dad papa baba vater padre",
        "child kid son daughter boy girl baby twin sohn tochter hijo hija",
        "sister sis hermana schwester", "brother bro hermano bruder",
        "grandmother grandma nana granny", "grandfather grandpa", "husband wife spouse partner",
        "friend mate buddy pal", "doctor doc", "dog puppy", "cat kitten",
    )
)  # fmt: skip


_ONE_NAME = rf"(?<![\w-]){CAPITAL}[\w-]{{0,40}}+"
_CALLED = re.compile(
    rf"(?P<name>{_ONE_NAME}),? (?:who is |is )?(?:(?:better|also) )?(?:known as|nicknamed|goes by) "
    rf"(?P<also>{_ONE_NAME})|"
    rf"(?P<whose>{_ONE_NAME}['’]s? [a-z]{{1,20}}(?: [a-z]{{1,20}})?) (?:is|are) (?:called|named) "
    rf"(?P<called>{_ONE_NAME})"
)


def nicknames(fact: str) -> list[tuple[str, str]]:
    """The names in a fact that have another name there: (name, other name).

    >>> nicknames("Eleanor, better known as Nell, and User's dog is called Rex.")
    [('Eleanor', 'Nell'), ('Rex', "User's dog")]
    """
    return [
        (found["name"], found["also"]) if found["name"] else (found["called"], found["whose"])
        for found in _CALLED.finditer(fact)
    ]


@dataclass(frozen=True, slots=True)
class Statement:
    """A fact taken apart: whom it is about, its other words, its numbers.

    person: the first word and the relatives it owns (Ana, brother). content: the words that are
    neither of the subject, nor numbers, nor stop words. names: the words after the first that begin
    with a capital, and those for people ("sister").
    """

    text: str
    person: tuple[str, ...]
    content: frozenset[str]
    names: frozenset[str]
    numbers: frozenset[str]
    dates: frozenset[str]
    negated: bool

    @classmethod
    def of(cls, text: str) -> Statement:
        undated = _WRITTEN_DATE.sub(" ", text)
        found = _SUBJECT.search(text)
        subject = words(found[0]) if found else []
        content = content_words(undated)
        capitals = [w.lower() for w in _CAPITALISED.findall(undated)]
        named = capitals[1:] if text[:1].isupper() else capitals
        people = {w for w in content if _KIN.fullmatch(w)}
        numbers = frozenset(w for w in content if w.isdigit() or w in NUMBER_WORDS)
        return cls(
            text=text,
            person=(*_FIRST.findall(text)[:1], *_relatives(text)),
            content=frozenset(content) - numbers - set(subject),
            names=frozenset(named) | people - set(subject),
            numbers=numbers,
            dates=frozenset(d.lower() for d in _WRITTEN_DATE.findall(text)),
            negated=is_negated(text),
        )

    def within(self, other: Statement) -> bool:
        """Whether another fact has all of this one's names, numbers and dates, and its "not"."""
        return (
            self.negated == other.negated
            and self.names <= set(words(other.text))
            and self.numbers <= other.numbers
            and self.dates <= other.dates
        )

    def may_end(self, other: Statement) -> bool:
        """Whether another fact has the numbers that this one puts right ("2100, not 1900"), and
        speaks of a marriage if this one denies one: a couple need not be married."""
        numbers = {*_INSTEAD_OF.findall(self.text)} <= {*_NUMBER.findall(other.text)}
        return numbers and (not _UNMARRIED.search(self.text) or bool(_MARRIAGE.search(other.text)))

    def speaks_of(self, person: tuple[str, ...]) -> bool:
        """Whether a fact is about a person or names them, as "The boiler of Ana's flat broke" does.

        A fact about Ana's brother does not speak of Ana, nor does one about Ana speak of him.
        person: as in `Statement.person`.
        """
        if self.person[:1] == person[:1]:
            return self.person == person
        named = r"['’]s? ".join(map(re.escape, person))
        return re.search(rf"\b{named}\b(?!{_RELATIVE})", self.text) is not None


def _relatives(text: str) -> list[str]:
    """The relations from the first person to the last: ["brother"] of "Ana's brother Tom's"."""
    leading = _RELATIVES.match(text)
    return re.findall(_RELATIVE, leading[1].lower()) if leading else []


def says_the_same(old: str, new: str) -> bool:
    """Whether two facts have the same words in the same order, articles and endings aside.

    The endings of names (Mary, Marie) and of the past (works, worked) do count.
    """
    said, again = ([w for w in words(text) if w not in _FILLERS] for text in (old, new))
    names = {w.lower() for text in (old, new) for w in _CAPITALISED.findall(text)}
    return len(said) == len(again) > 0 and all(
        a == b or (not {a, b} & names and _is_inflected(a, b))
        for a, b in zip(said, again, strict=True)
    )


def _is_inflected(one: str, other: str) -> bool:
    """Whether two words are forms of one in the present: plays and playing, not plays and played,
    nor hard and hardly."""
    return _INFLECTED.fullmatch(f"{one} {other}") is not None and same_word(one, {other})


def with_known_people(fact: str, said: Collection[str]) -> str | None:
    """The fact without a relation that was not said; None if nobody spoke of a person in it.

    "Ana's sister Lena" becomes "Lena" if nobody spoke of a sister. said: the words of all that was
    said, in lower case.
    """

    def known(word: str) -> bool:
        group = next((g for g in _SAME_KIN if same_word(word, g)), frozenset())
        return any(same_word(w, said) for w in {word, *group}) or any(
            _is_short_for(w, word) or _is_short_for(word, w) for w in said
        )

    def related(found: re.Match[str]) -> bool:
        return all(map(known, content_words(found["what"])))

    fact = _NAMED.sub(lambda found: found[0] if related(found) else "", fact)
    fact = fact[:1].upper() + fact[1:]
    named = all(known(word) for name in NAME.findall(fact) for word in content_words(name))
    return fact if named and all(map(related, _OWNED.finditer(fact))) else None


def _is_short_for(short: str, word: str) -> bool:
    """Whether a word is the beginning of another: sat of Saturday, Otti of Ottilie."""
    return len(short) > 2 and word.startswith(short) and bool(content_words(short))


def owned_by(owner: str, fact: str) -> list[str]:
    """The words for what somebody owns in a fact: ["car"] of "Kim's car"."""
    return [w.lower() for w in re.findall(rf"\b{re.escape(owner)}['’]s (\w+)", fact)]


def denies_alike(fact: str, content: Sequence[str], sentence: str) -> bool:
    """Whether a fact denies what its sentence denies: "I can't eat nuts" is not "Kim can eat nuts".

    The sentence must deny each content word that follows a "not" of the fact. A fact without "not"
    must not have a word that follows a "not" of the sentence. content: the fact's content words.
    """
    of_sentence = denied(sentence)
    if is_negated(fact):
        said = [word for clause in of_sentence for word in clause]
        return is_negated(sentence) and all(same_word(c[0], said) for c in denied(fact))
    return not any(same_word(clause[0], content) for clause in of_sentence)


_TOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]*)?")
_HAD = re.compile(rf"\b(?P<owner>{CAPITAL}\w*)['’]s (?P<what>[a-z]+)\b(?!['’-])")
_NO_OWNERS = frozenset("who's there's here's whos thats whats hes shes theres heres".split())
_DID = re.compile(rf"\b(?={CAPITAL})(?P<by>\w+) (?P<did>[a-z]+) (?={CAPITAL})(?P<to>\w+)\b(?!['’])")
_PART = re.compile(r"[,;:.!?()]|\b(?:and|but|so|because|cause|cos)\b", re.I)
_ENDED = re.compile(
    r"\b(?:gone(?! to\b)|no (?:longer|more)|any ?more|(?:gave|given) up|quit|stopped|got rid|cured"
    r"|healed|cleared up)\b",
    re.I,
)


def misreads(fact: str, said: str, speaker: str) -> bool:
    """Whether a fact turns round what its message says.

    Either it has a wrong owner: "Sam's wife" is not the speaker's, "my drill" is nobody else's. Or
    giver and taker are exchanged: "paid Priya" is not "Priya paid User". Or it has what has ended:
    "the rash has gone" is not "User has a rash". Or it asserts a number that is denied. Or it is of
    somebody else: "Arne's tablets" are not "Bill's tablets".
    """
    return (
        _names_another(fact, said, speaker)
        or asserts(fact, filter(str.isdigit, values_denied(said)))
        or _has_wrong_owner(fact, said, speaker)
        or _is_turned_round(fact, said, speaker)
        or _has_ended(fact, said, speaker)
    )


def _names_another(fact: str, said: str, speaker: str) -> bool:
    """Whether a fact begins with a name that its message lacks, and has none of the message's."""
    found = _FIRST_NAME.match(fact)
    first = words(found[0]) if found else []
    spoken = {*words(said)}
    if not first or first[0] in words(speaker) or any(same_word(word, spoken) for word in first):
        return False
    owners = {found["name"].lower() for found in _NAMED_OWNER.finditer(said)} - _NOBODY
    names = (proper_names(said) | owners) - _CALENDAR
    return bool(names) and names.isdisjoint(words(fact))


def of_diarist(fact: str, sentence: str, speaker: str) -> str:
    """A fact with the speaker in the place of a name that its sentence lacks, if the sentence
    begins without a subject.

    >>> of_diarist("Sanne has sown beetroot.", "Sowed beetroot.", "User")
    'User has sown beetroot.'
    """
    found = _FIRST_NAME.match(fact)
    name = found[0].strip() if found else ""
    spoken = {*words(sentence), *words(speaker)}
    lacks = name and not any(same_word(word, spoken) for word in words(name))
    if not (lacks and begins_as_past(sentence)) or fact[len(name) :].startswith(("'s", "’s")):
        return fact
    return speaker + fact[len(name) :]


def _has_wrong_owner(fact: str, said: str, speaker: str) -> bool:
    """Whether a fact's thing or person is the speaker's, and always another's in the message; or
    the other way round."""
    for had in _HAD.finditer(fact):
        owners = _owners(had["what"], said)
        own = had["owner"].lower() in words(speaker)
        if owners and all(_is_other(owner) if own else owner in ("my", "our") for owner in owners):
            return True
    return False


def _owners(what: str, said: str) -> list[str]:
    """The word directly before each occurrence of another in a text; "" if there is none."""
    owners, before, end = [], "", 0
    for found in _TOKEN.finditer(said.lower()):
        word = found[0].replace("’", "'")
        if same_word(word.removesuffix("'s"), {what}):
            owners.append(before if said[end : found.start()].isspace() else "")
        before, end = word, found.end()
    return owners


def _is_other(owner: str) -> bool:
    """Whether a word before a noun says that it is another's: her, Sam's, twins', Sams."""
    if owner in ("his", "her", "their"):
        return True
    return owner.endswith(("s", "s'")) and owner not in STOP_WORDS | _NO_OWNERS


def _is_turned_round(fact: str, said: str, speaker: str) -> bool:
    """Whether a fact has the speaker do to another what the other does to the speaker, or the other
    way round."""
    for by, did, to in _DID.findall(fact):
        by_speaker, to_speaker = (name.lower() in words(speaker) for name in (by, to))
        if by_speaker == to_speaker or did in STOP_WORDS:
            continue
        if by_speaker:
            told, turned = rf"\b{did} {to}\b", rf"\b{to} {did} (?:me|us)\b"
        else:
            told, turned = rf"\b{by} {did}\b", rf"\b{did} (?:back )?{by}\b"
        if re.search(turned, said, re.I) and not re.search(told, said, re.I):
            return True
    return False


def repeats_itself(fact: str) -> bool:
    """Whether a fact says of something only that it is itself, as one made of a bare noun does.
    Of the 70,002 written facts of models/pairs and bench/relations three do.

    >>> repeats_itself("User's new sofa is called the new sofa.")
    True
    >>> repeats_itself("User's new sofa is the red one.")
    False
    """
    said = _IS_ITSELF.fullmatch(fact)
    if said is None:
        return False
    before, after = ({*words(part.replace("'s", ""))} for part in said.groups())
    return bool(before & after) and after <= before | _SMALL


def _has_ended(fact: str, said: str, speaker: str) -> bool:
    """Whether all of a fact is in one clause that says that something ended."""
    if _ENDED.search(fact) or is_negated(fact):
        return False
    new = [w for w in content_words(fact) if w not in words(speaker)]
    parts = [words(part) for part in _PART.split(said) if _ENDED.search(part)]
    return any(new and all(same_word(word, part) for word in new) for part in parts)


tells_name = having(r"\AUser(?:['’]s (?:\w+ )?name)? is (?:called |named )?(?-i:[A-Z])")
"""Whether a fact tells the user's name."""
_IS_ITSELF = re.compile(r"([^,;]+?) (?:is|are|was|were)(?: called| named)? ([^,;]+)")
_SMALL = frozenset("a an at for from her his in its my of on our the their".split())
_FIRST_TO_THIRD = (
    (re.compile(r"\b(?:I am|I['’]m)\b"), "{} is"),
    (re.compile(r"\b(?:I have|I['’]ve)\b"), "{} has"),
    (re.compile(r"\bI\b"), "{}"),
    (re.compile(r"\bmy\b", re.I), "{}'s"),
)


def in_third_person(text: str, speaker: str) -> str:
    """What somebody says of themselves as others would: "I'm vegan" is "User is vegan"."""
    for form, other in _FIRST_TO_THIRD:
        text = form.sub(other.format(speaker), text)
    return text


# -- whom a question names -------------------------------------------------------------------

_TITLES = frozenset("mr mrs ms dr prof".split())
_NO_SURNAMES = frozenset("i i'm i've i'll i'd".split())
_CALENDAR = frozenset(name.lower() for name in (*MONTHS, *DAYS))
_WHO_IS = re.compile(
    r"\W*(?:(?:and|but|so|hey|ok|okay)\b\W*){0,3}who(?:['’]?s|['’]?re|\s+(?:is|are|am|was|were))\s+"
    r"(?P<whom>[\w'’.-]+(?:\s+[\w'’.-]+){0,4})\W*",
    re.I,
)


_FROM = r" from (?:the |my |our )?(?P<from>[\w'’-]+)"
_WHOM = rf"(?:(?:my|our) {KIN}s?|(?-i:[A-ZÀ-ÖØ-Þ])[\w'’-]+)"
_ABOUT = re.compile(
    r"\W*(?:(?:please|can|could|will|would|you|and|so)\b\W*){0,4}"
    r"(?:(?:tell|remind) me(?: (?:all|everything|something|more|again))?(?: you know)?"
    r"|(?:what(?: else)?|everything|anything)"
    r"(?: (?:do|did|have|can|you|i|ever|know|remember|tell|told|say|said|me))+)"
    rf" (?:about|of) (?P<whom>{_WHOM}(?:,? (?:and )?{_WHOM}){{0,3}})(?:{_FROM})?"
    r"(?: (?:again|please))?\W*",
    re.I,
)
_ABOUT_KIN = frozenset(
    "best old little big older younger elder former new dear good close late law".split()
)
_LONGEST = 200  # characters of a question that names somebody and nothing else


def asked_about(question: str) -> set[str]:
    """The words one of which a text about somebody has, if a question is for whatever there is
    about somebody, by name or as the user's kin; else none.

    >>> sorted(asked_about("Tell me about Ana Lima")), asked_about("Tell me about my work")
    (['ana', 'lima'], set())
    """
    asked = _ABOUT.fullmatch(question) if len(question) <= _LONGEST else None
    if asked is None:
        return set()
    names = {*content_words(asked["whom"])} - _ABOUT_KIN
    names |= {word.removesuffix("s") for word in names}
    return names.union(*(kin for kin in _SAME_KIN if kin & names)) - _CALENDAR


_OF_ALL = frozenset(
    "know known tell told say said remember remembered learn learned learnt everything anything "
    "something list give show summarise summarize summary sum overview facts life person person's "
    "far please recap describe memory memories got well name".split()
)


def asks_of_speaker(question: str) -> bool:
    """Whether a question is for whatever there is about its speaker, and for nothing of theirs.

    >>> asks_of_speaker("What do you know about me?"), asks_of_speaker("What do I know of dogs?")
    (True, False)
    """
    return is_of_speaker(question) and {*content_words(question)} <= _OF_ALL


def named(question: str, texts: Iterable[str]) -> list[str]:
    """The words of a question that it or one of the texts writes as names, except months and
    weekdays."""
    names = set[str]().union(*map(proper_names, (question, *texts))) - _CALENDAR
    return [word for word in content_words(question) if word in names]


_TITLE = rf"(?:{KIN}|called|named|mrs?|ms|miss|dr)"
_ACTS = (
    r"(?:(?:is|was|has|had|isnt|hasnt|wants|wanted|works|worked|lives|lived|said|says|told|text|texts"
    r"|texted|rang|rings|came|comes|went|goes|gave|paid|asked|from)\b|(?:n|and) (?:i|me)\b)"
)


def is_introduced(name: str, texts: Iterable[str]) -> bool:
    """Whether a text without capitals tells who somebody is, by kin or by what they do.

    >>> is_introduced("donna", ["asked my boss donna 4 the day off"])
    True
    >>> is_introduced("pregnant", ["tash is pregnant", "im pregnant n tired"])
    False
    """
    if name in STOP_WORDS or name.endswith(("ing", "ed")):
        return False
    word = re.escape(name)
    told = re.compile(
        rf"\b{_TITLE} (?:is )?{word}\b|(?:\A|[.!?,;] |\b(?:n|and|but|cos) ){word} {_ACTS}", re.I
    )
    return any(text[1:] == text[1:].lower() and told.search(text) for text in texts)


def asked_whom(question: str) -> list[str]:
    """The words after "who is" in a question of nothing else; they may be no name ("my boss")."""
    asked = _WHO_IS.fullmatch(question)
    whom = re.sub(_FROM, "", asked["whom"], flags=re.I) if asked else ""
    return [word for word in words(whom) if word != "and"]


# -- which of several people of a name --------------------------------------------------------

_AND = re.compile(r",? and |, ")
_OUR_KIN = re.compile(rf"(?:(?:my|our) )?(?P<kin>{KIN})s?\b ?", re.I)


class _Person(NamedTuple):
    """Somebody by name. kin: what they are to the user. surname: the words after the first name.
    group: where the user knows them from. Each may be empty."""

    name: str
    kin: str
    surname: tuple[str, ...]
    group: str


def of_others(question: str, texts: Sequence[str]) -> list[bool]:
    """For each text, whether it tells of others than those whom a question asks about, although
    they have the same first name.

    A full name is not that of a person with another surname or of another kin. If there is such a
    person, a first name alone tells not which of the two is meant, and counts as the other's.

    >>> of_others("Who is Tom Reilly?", ["My brother Tom dives.", "My colleague Tom Reilly sings."])
    [True, False]
    """
    asked = _WHO_IS.fullmatch(question) or _ABOUT.fullmatch(question[: _LONGEST + 1])
    people = [*_people(asked)] if asked else []
    told = [_tells(person, texts) for person in people]
    return [False in of_text and True not in of_text for of_text in zip(*told, strict=True)] or [
        False for _ in texts
    ]


def _people(asked: re.Match[str]) -> Iterator[_Person]:
    """The people whom a question names."""
    group = re.search(_FROM, asked[0], re.I)
    for part in _AND.split(re.sub(_FROM, "", asked["whom"], flags=re.I)):
        kin = _OUR_KIN.match(part)
        name = words(part[kin.end() :] if kin else part)
        person = _Person(
            name[0] if name else "", _kin(kin["kin"]) if kin else "", tuple(name[1:]),
            group["from"].lower() if group else "",
        )  # fmt: skip
        if name or kin:
            yield person


def _kin(word: str) -> str:
    """A word for kin without what describes it, and one of those that mean the same."""
    last = word.lower().split()[-1]
    return next((min(group) for group in _SAME_KIN if last in group), last)


def _tells(person: _Person, texts: Sequence[str]) -> list[bool | None]:
    """Whether each text tells of a person; None if it does not have the first name, or the word for
    kin if no name is known."""
    if not person.name:
        return [_tells_of_own(person.kin, text) for text in texts]
    mentions = [_mentions(person, text) for text in texts]
    kin_of: dict[str, set[str]] = {}
    for mention in chain.from_iterable(mentions):
        if mention.kin and mention.surname:
            kin_of.setdefault(mention.surname[0], set()).add(mention.kin)

    def is_theirs(told: _Person) -> bool | None:
        """None: only the first name is told."""
        if person.group and told.group not in ("", person.group):
            return False
        if person.surname:
            own = kin_of.get(person.surname[0], set())
            if told.surname:
                return told.surname[0] == person.surname[0]
            near = any(told.kin in group for group in _SAME_KIN)
            return (told.kin in own or not (own or near)) if told.kin else None
        if person.kin and told.kin:
            return told.kin == person.kin
        known = kin_of.get(told.surname[0], set()) if told.surname else set()
        return not (person.kin and known) or person.kin in known

    theirs = [[is_theirs(mention) for mention in of_text] for of_text in mentions]
    several = bool(person.surname) and False in chain.from_iterable(theirs)
    return [
        any(not several if is_of is None else is_of for is_of in of_text) if of_text else None
        for of_text in theirs
    ]


def _tells_of_own(kin: str, text: str) -> bool | None:
    """Whether a text tells of the user's own kin, not "Ana's mother"; None if it names no kin."""
    alike = next((group for group in _SAME_KIN if kin in group), {kin})
    owners = [owner for word in alike for owner in _owners(word, text)]
    return not all(map(_is_other, owners)) if owners else None


def _mentions(person: _Person, text: str) -> list[_Person]:
    """Where a text has a person's first name, with what it says beside that."""
    dot = r"\.?" if person.name in _TITLES else ""
    surname = "".join(rf"|(?i:{re.escape(word)})\b" for word in person.surname[:1])
    form = re.compile(
        rf"(?:(?P<kin>(?i:{KIN})) )?(?<![\w-])(?i:{re.escape(person.name)})(?![\w-])"
        rf"{dot}(?: (?P<surname>{CAPITAL}[\w-]+{surname})(?!['’]?\w))?"
        rf"(?i:{_FROM}|(?:,| is| was)? (?:my|our) (?P<also>{KIN})\b)?"
    )
    found = []
    for told in form.finditer(text):
        last = (told["surname"] or "").lower()
        kin = told["kin"] or told["also"]
        found.append(
            _Person(
                person.name, _kin(kin) if kin else "",
                (last,) if last and last not in _CALENDAR | _NO_SURNAMES else (),
                (told["from"] or "").lower(),
            )
        )  # fmt: skip
    return found
