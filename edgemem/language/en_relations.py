"""Who is what to whom in an English fact, by rule: "Ana's brother Bartek moved to Bergen" gives
(Ana, sibling_of, Bartek) and (Bartek, lives_in, Bergen).

A fact is split into clauses, each a subject and what is said of it. The possessive before a name
gives kin, friends and pets; the verb gives the rest. A verb's pattern begins where the verb does,
so a "not", a "would" or a "hopes to" before it leaves nothing that fits. What no pattern fits gives
no edge: a missing one can still be read in its fact, but a wrong one is believed.

Knows one fact as text, and the patterns of `en_relation_words`; knows no store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from edgemem.language.en import CAPITAL
from edgemem.language.en_relation_words import (
    CAP,
    DATE,
    DWELLING,
    EVENT,
    ILLNESS,
    JOB,
    NAME,
    NAMES,
    NO_JOB,
    NO_TARGET,
    OWNED,
    PET,
    PHRASE,
    PLACE,
    ROLE,
    RULES,
    SCHOOL,
    TEAM,
    TOGETHER,
    VERB,
    WORKPLACE,
    Rule,
    role_label,
)
from edgemem.results import Entity, EntityType, Label, Triple

__all__ = ["LONGEST", "triples"]

LONGEST = 1000
"""Characters of a fact."""


def triples(fact: str) -> list[Triple]:
    """What a fact says, in its order, but of what kind things are last.

    A question says nothing, a condition nothing but kin. What is longer than LONGEST is not read:
    some patterns take the square of its length.

    >>> [(t.source.name, t.label, t.target.name) for t in triples("Ana's dog Rex is a poodle.")]
    [('Ana', 'has_pet', 'Rex'), ('Rex', 'is_a', 'poodle')]
    """
    text = " ".join(fact.split()).rstrip(".! ")
    if text.endswith("?") or len(text) > LONGEST:
        return []
    reading = _Reading(text)
    for subjects, start, end in list(reading.clauses()):
        reading.read_clause(subjects, start, end)
    reading.read_whole()
    reading.read_possessives()
    return sorted(reading.found, key=lambda triple: triple.label == "is_a")


_CLAUSE = re.compile(
    r"; |,? (?:and|but|so|while|whereas|because|although|though) (?:that )?|,? who |, which |, "
)
_HYPOTHETICAL = re.compile(r"\b(?:if|unless|whether|doubts?|wish(?:es)?)\b", re.I)
_PASSED = re.compile(  # before a verb, without changing what it says
    r"(?:(?:now|also|still|currently|just|recently|already|always|usually|really|mainly|mostly|"
    r"often|sometimes|finally|then|both|actually|absolutely|secretly|regularly|all) )+"
)
_WHO_DOES = re.compile(r"(?:is|has|was|are|have|[a-z]+s|[a-z]+ed) ")
_PRONOUN = re.compile(r"(?:he|she|they|it|both) ")
_OWN = re.compile(r"(?<!\w)(?:his|her|their) (?=[a-z])")
_HEAD = re.compile(NAME)
_SOME = r"(?:(?!(?:an?|the|and|with|of|who|whose|his|her|their|is|was|has|in) )[a-z][\w-]* ){0,2}?"
_ROLE_HERE = re.compile(rf"(?P<what>{_SOME}(?:{ROLE}|{PET}))(?![\w-])(?!['’]s side| tongue)", re.I)
_POSSESSIVE = re.compile(rf"['’]s? {_ROLE_HERE.pattern}", re.I)
_ANY_POSSESSIVE = re.compile(
    rf"(?<!\w)(?P<who>{NAME})['’]s? (?={_ROLE_HERE.pattern.replace('?P<what>', '?:')})"
)
_OF_A_PEOPLE = (  # "Ana's wife is Danish" names nobody
    r"\w+(?:ish|ese|ian|[cr]an|ean|ic|ch|ist|ew|ek|man|im|ss|ni|li|qi|sh|nt|du|kh|ai)$"
)
_CALLED = re.compile(
    r"(?:,? (?:who is |is |are )?(?:called|named) |['’]s name is | is (?=(?:Mr|Mrs|Ms|Dr)\b)|"
    rf" is (?={NAME}$)(?!{_OF_A_PEOPLE})|[,:]? )"
    rf"(?P<names>{NAMES})(?P<apart>(?=,|$))?"
)
_BY_NAME = re.compile(rf" (?:called|named) (?:the )?(?P<np>{CAP}(?: (?:and |& |of |the )*{CAP})*)")
_APART = re.compile(rf", (?P<np>{CAP}(?: (?:and |& |of |the )*{CAP})*)(?=,|$)")
_ALSO = re.compile(
    rf"(?:,| is|,? who is)? (?:(?:better|also) )?(?:known as|nicknamed|goes by) (?P<np>{NAME}),?"
)
_OVER = re.compile(r"\b(?:ex|late|former|dead|first (?:husband|wife))\b", re.I)
_DEAD = re.compile(r",? (?:died|has died|passed away|would have|was killed|is dead)\b")
_MANY = re.compile(r"(?:s|children)$")
_AGE = re.compile(r" \((?P<a>\d{1,3})\)|, (?P<b>\d{1,3}),")
_FROM = re.compile(rf" (?:in (?P<np>{CAP})|from \w+)(?= [a-z])")
_IN = re.compile(rf" in (?!{DATE}){PLACE}")
_AT = re.compile(rf" (?:at|for|with) (?:the |an? )?(?P<np>{PHRASE})")
_ON = re.compile(rf",? (?:on|in) (?:the )?(?P<np>{DATE})")
_WITH = re.compile(rf" with (?P<names>{NAMES})")
_BECAUSE_OF = re.compile(rf" for (?:(?:his|her|their|an?) )?(?P<np>{ILLNESS})(?![\w-])")
_ITEM = re.compile(r", and |, | and | or ")
_PET_ITEM = re.compile(rf"(?:an?|the|his|her) (?P<np>{_SOME}{PET})(?![\w-])")
_ALONE = "sings cooks dances swims paints writes reads knits runs cycles teaches works".split()
_ITEM_PHRASE = re.compile(rf"(?:(?:an?|the|his|her|their) )?(?P<np>{PHRASE})")
_NO_ITEM = re.compile(  # a verb, for all that it follows an "and"
    r"(?:\w+ed|said|told|left|went|got|fell|took|gave|came|ran|ate|had|saw|bought|met|put|lost|"
    r"kept|brought|wrote|made|taught|sold|sent|spent|built|found|felt|thought|knew|did|sang|won|hung|"
    r"heard|held|paid|slept|broke|drove|flew|stood|sat|read|cut|let|hit|threw|wore|"
    r"\w+ing(?= (?!and |or |in |on )[a-z])|"
    rf"(?:{'|'.join(_ALONE)})(?=$|,)|[a-z]+s(?= [a-z]))\b(?!['’-])|"
    rf"(?:(?:an?|the|his|her|their) )?{PHRASE} (?:them|him|her|it|he|she|is|are|was|were|has|had)\b"
)
_BE_A = re.compile(
    r"(?:is|are|has been|became|has become)(?: now)?(?: [\w-]+(?: years old)? and)?? "
    rf"(?P<a>an? |the )(?P<np>{PHRASE})"
)
_HAS_KIN = re.compile(
    rf"(?:has|have)(?: got)? (?P<many>an? |\w+ )(?P<what>{_SOME}{ROLE})(?![\w-])", re.I
)
_AND_KIN = re.compile(rf"(?:,| and|, and) (?P<many>an? )(?P<what>{_SOME}{ROLE})(?![\w-])", re.I)
_TO_SCHOOL = re.compile(
    r"go|attend|(?:is|are)(?: now)? at|(?:has |have )?(?:start|enrol|transfer|switch)"
)
_IS_KIN = re.compile(
    rf"(?:is|are|isn['’]t .*? but) (?P<who>{NAME})['’]s (?P<what>{_SOME}{ROLE})(?![\w-])"
)
_TEACHES = re.compile(
    rf"(?:teaches|is teaching) (?:(?P<who>{NAME}) (?:the |to play the )?(?P<np>{PHRASE})|"
    rf"(?P<what>{PHRASE}) to (?P<whom>{NAME}))"
)
_GAVE = re.compile(
    rf"(?:left|gave) (?P<who>{NAME}|them|him|her) (?:his|her|their|an?|the)(?: old)? {OWNED}"
)
_APPOINTMENT = re.compile(rf"has an? (?P<np>{EVENT}(?: with {NAME})?)(?= (?:on|in) )")

# What is told of somebody's house or birthday, of a club, of an event: the beginning of a fact.
_WHAT_IS: tuple[tuple[Label, EntityType, re.Pattern[str]], ...] = (
    ("born_on", "date", re.compile(
        rf"['’]s? birthday (?:is|falls) (?:on |in )?(?:the )?(?P<np>{DATE})"
    )),
    ("lives_in", "place", re.compile(
        rf"['’]s? (?:\w+ )?(?:{DWELLING}|address) is (?:now )?in {PLACE}"
    )),
    ("likes", "thing", re.compile(
        rf"['’]s? (?:\w+ )?favou?rite [\w ]+? (?:is|are) (?:the )?(?P<np>{PHRASE})"
    )),
    ("speaks", "thing", re.compile(
        r"['’]s? (?:native|first|mother) (?:language|tongue) is (?P<np>[A-Z]\w+)"
    )),
    ("plans_to_visit", "place", re.compile(
        rf"['’]s? (?:flight|trip|train) to {PLACE} (?:is|leaves)"
    )),
    ("works_at", "organisation", re.compile(
        rf"['’]s? (?:company|employer|firm|workplace),? (?:is called |is )?"
        rf"(?P<np>{CAP}(?: (?:& |and )?{CAP})*)"
    )),
)  # fmt: skip
_OF_THING = re.compile(
    r"['’]s? (?:new )?(?:car|van|bike|bicycle|motorbike|boat|scooter|piano|phone|caravan) is "
    rf"(?:an? )?(?:old )?(?P<np>{PHRASE})"
)
_OF_ORGANISATION = re.compile(
    rf"['’]s? (?P<kind>[a-z][\w -]*?) is (?:called|named) (?:the )?"
    rf"(?P<np>{CAP}(?: (?:& |and |of |the )?{CAP})*)"
)
_OF_EVENT = re.compile(
    rf"(?:[Tt]he (?:{NAME}['’]s? )?|{NAME}['’]s? |['’]s? )(?:next |last |first )?"
    rf"(?P<what>{EVENT}(?: to {CAP})?) (?:is|was|takes place|starts|begins|will be)"
    r"(?P<rest> (?:on|in|at) .+)"
)
_OF_PLACE = re.compile(
    rf"(?:(?:The (?:\w+['’]s? )?|{NAME}['’]s? )(?P<kind>[a-z][\w -]*?), )?(?:[Tt]he )?"
    rf"(?P<name>{CAP}(?:['’]s)?(?: (?:& |and |of |the )?{CAP}(?:['’]s)?)*),? is "
    rf"(?:based |an? (?P<np>{PHRASE}))?(?=$| ?in )"
)


def _names(text: str) -> list[str]:
    return re.split(r", and |, | and ", text)


def _first_name(text: str) -> str:
    found = _HEAD.match(text)
    return found[0] if found else text


class _Reading:
    """A fact that is being read. found: what it said so far, each once, in its order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: dict[Triple, None] = {}
        self.about: list[Entity] = []  # its first subjects
        self._about_end = 0
        self._read: set[int] = set()  # where the possessives begin that were read

    def add(self, source: Entity, label: Label, target: Entity) -> None:
        if source.name.casefold() != target.name.casefold():
            self.found.setdefault(Triple(source, label, target))

    # -- who

    def people(self, at: int) -> tuple[list[Entity], int] | None:
        """Those who are named, one after another, from a place on; and where that ends."""
        found: list[Entity] = []
        while one := self.person(at, found or self.about):
            head = _HEAD.match(self.text, at)
            if found and head and head[0] != "User" and one[0][0].name.startswith(f"{head[0]}'s "):
                found = []  # "Ana and Joel's parents"
            found, at = [*found, *one[0]], one[1]
            joint = re.compile(r",? and |, ").match(self.text, at)
            if not joint or not (_HEAD.match(self.text, joint.end()) or self._own(joint.end())):
                break
            at = joint.end()
        return (found, at) if found else None

    def _own(self, at: int) -> re.Match[str] | None:
        own = _OWN.match(self.text, at)
        return _ROLE_HERE.match(self.text, own.end()) if own else None

    def person(self, at: int, owners: Sequence[Entity]) -> tuple[list[Entity], int] | None:
        """Somebody, by name or by whose they are ("Ana's sister Mina", "his wife"), and the end."""
        if owners and (role := self._own(at)):
            return self._whose([self._owner(owners[0], role)], role)
        head = _HEAD.match(self.text, at)
        if head is None:
            return None
        alias = _ALSO.match(self.text, head.end())
        found = [Entity(head[0], "person", (alias["np"],) if alias else ())]
        end = alias.end() if alias and alias[0].endswith(",") else head.end()
        while role := _POSSESSIVE.match(self.text, end):
            found, end = self._whose(found, role)
        return found, end

    def _whose(self, owners: Sequence[Entity], role: re.Match[str]) -> tuple[list[Entity], int]:
        """Those whom a possessive leads to. They have names, or are "Ana's sister"."""
        what, end = role["what"], role.end("what")
        self._read.add(role.start("what"))
        pet = re.search(rf"(?:^| ){PET}$", what, re.I) is not None
        type: EntityType = "pet" if pet else "person"
        called = _CALLED.match(self.text, end)
        apart = called is not None and called[0].startswith(", ")
        if called and apart and called["apart"] is None and not pet and " and " not in called[0]:
            called = None  # "Ana's sister, Mina and Joel" are three
        if called:
            names = _names(called["names"])
            end = called.end()
            if not _MANY.search(what):
                names = [_first_name(called["names"])]
                end = called.start("names") + len(names[0])
            end += apart and self.text[end : end + 2] == ", "
        else:
            names = [f"{owners[0].name}'s {what}"]
        surely = called is not None and called[0].startswith((" is called", " is named"))
        other = (f"{owners[0].name}'s {what}",) if surely and len(names) == 1 else ()
        if len(names) == 1 and (also := _ALSO.match(self.text, end)):
            other = (*other, also["np"])
            end = also.end() if also[0].endswith(",") else end
        found = [Entity(name, type, other) for name in names]
        if called and (age := _AGE.match(self.text, end)):
            self.add(found[0], "aged", Entity(age["a"] or age["b"], "thing"))
            end = age.end()
        if not _OVER.search(what) and not _DEAD.match(self.text, end):
            self._tie(owners, what, found, named=called is not None)
        if where := _FROM.match(self.text, end):  # "Ana's cousin in Toronto"
            end = where.end() if not (called and where["np"]) else end
            if where["np"] and not called:
                self.add(found[0], "lives_in", Entity(where["np"], "place"))
        return found, end

    def _tie(
        self, owners: Sequence[Entity], what: str, found: Sequence[Entity], *, named: bool
    ) -> None:
        label = "has_pet" if found[0].type == "pet" else role_label(what)
        if not named and (label == "other" or what.endswith(("baby", "child"))):
            return  # "Ana's dentist was late" is about no relation
        for owner in owners:
            for each in found:
                self.add(owner, label, each)
                if label == "has_pet" and named and not _MANY.search(what):
                    self.add(each, "is_a", Entity(what, "thing"))

    def read_possessives(self) -> None:
        """Kin, friends and pets that are named elsewhere than at a clause's beginning."""
        for found in _OWN.finditer(self.text):
            role = self._own(found.start())
            if found.end() in self._read or not role or not self.about:
                continue
            named = _CALLED.match(self.text, role.end("what")) is not None
            if named or self._surely_owns(self.about[0], found):
                self._whose([self._owner(self.about[0], role)], role)
        for found in _ANY_POSSESSIVE.finditer(self.text):
            if found.end() in self._read:
                continue
            role = _ROLE_HERE.match(self.text, found.end())
            if role and (found["who"] == "User" or _CALLED.match(self.text, role.end("what"))):
                self.person(found.start(), ())

    def _owner(self, who: Entity, role: re.Match[str]) -> Entity:
        """Whose a pronoun says: the sister of Ana's sister is taken for Ana's."""
        label = None if re.search(PET, role["what"]) else role_label(role["what"])
        return next((t.source for t in self.found if t.target == who and t.label == label), who)

    def _surely_owns(self, owner: Entity, pronoun: re.Match[str]) -> bool:
        """Whether nobody else may be meant by a "her" or "their"."""
        before = self.text[: pronoun.start()]
        if owner.name == "User":
            return pronoun[0].startswith("their") or "User" not in before
        others = [m[0] for m in _HEAD.finditer(before) if m[0] != owner.name and m.start()]
        return not others and not before.startswith(f"{owner.name}'s")

    # -- clauses

    def clauses(self) -> Iterator[tuple[list[Entity], int, int]]:
        """Of each clause whom it is about, where its verb begins, and where it ends."""
        begun: tuple[list[Entity], int] | None = None
        for before, at in [(0, 0), *((j.start(), j.end()) for j in _CLAUSE.finditer(self.text))]:
            if begun and before < begun[1]:
                continue  # within the names of whom it is about
            subjects = self._subjects(before, at, begun[0] if begun else [])
            if subjects is None:
                continue
            if begun:
                yield *begun, before
            begun = subjects
            if at == 0:
                self.about, self._about_end = begun
        if begun:
            yield *begun, len(self.text)

    def _subjects(
        self, before: int, at: int, last: list[Entity]
    ) -> tuple[list[Entity], int] | None:
        """Whom a clause is about that may begin at a place; None if none does."""
        if at == 0:
            return self.people(at)
        people = [t.target for t in self.found if t.target.type in ("person", "pet")]
        if "who" in self.text[before:at]:
            named = re.search(rf"{NAME}$", self.text[:before])
            known = [p for p in people if named and p.name == named[0]]
            if named and not known:
                known = [Entity(named[0], "person")]
            elif not named:
                known = [p for p in people if p.name.split()[-1] == self.text[:before].split()[-1]]
            return (known[-1:], at) if known else None
        if pronoun := _PRONOUN.match(self.text, at):
            others = [p for p in people if p.type == "person"]
            if pronoun[0].strip() in ("he", "she") and last and last[0].name == "User":
                return (others[-1:], pronoun.end()) if others else None
            return (last, pronoun.end()) if last else None
        if last and self._begins_verb(at):
            return last, at
        tied, read = dict(self.found), set(self._read)
        if (found := self.people(at)) and _WHO_DOES.match(self.text, found[1] + 1):
            return found
        self.found, self._read = tied, read
        return None

    def _begins_verb(self, at: int) -> bool:
        at = self._passed(at)
        if self.text.startswith("like ", at):
            return False  # "as the penguins do"
        if re.compile("(?:is|are|has|have|was) ").match(self.text, at):
            return True
        return VERB.match(self.text, at) is not None

    def _passed(self, at: int) -> int:
        passed = _PASSED.match(self.text, at)
        return passed.end() if passed else at

    # -- what is said

    def read_clause(self, subjects: list[Entity], start: int, end: int) -> None:
        """What a clause says of its subjects. start: where its verb begins, or a space before."""
        text = self.text[:end]
        at = self._passed(start + (text[start : start + 1] == " "))
        if _HYPOTHETICAL.search(text):
            return
        if len(subjects) == 2:
            one, other = sorted(subjects, key=lambda s: s.name != "User")
            for label, form in TOGETHER:
                if form.match(text, at):
                    self.add(one, label, other)
        for rule in RULES if VERB.match(text, at) else ():
            if match := rule.form.match(text, at):
                self._apply(rule, match, subjects, text)
        self._kind(subjects, text, at)
        self._kin(subjects, text, at)
        if match := _APPOINTMENT.match(text, at):
            self._when(Entity(match["np"], "event"), text, match.end())

    def read_whole(self) -> None:
        """What a fact says that is about a house, a birthday, an event, a club."""
        for label, type, form in _WHAT_IS if self.about else ():
            if match := form.match(self.text, self._about_end):
                self.add(self.about[0], label, Entity(match["np"], type))
        if self.about and (match := _OF_THING.match(self.text, self._about_end)):
            self.add(self.about[0], "owns", Entity(match["np"], "thing"))
        if self.about and (match := _OF_ORGANISATION.match(self.text, self._about_end)):
            self._named(self.about[0], match["kind"], Entity(match["np"], "organisation"))
        match = _OF_EVENT.match(self.text, self._about_end)
        if match := match or _OF_EVENT.match(self.text):
            self._when(Entity(match["what"], "event"), self.text, match.start("rest"))
        elif match := _OF_PLACE.match(self.text):
            place = Entity(match["name"], "organisation")
            kind = match["kind"] or match["np"]
            if match["kind"] or (
                WORKPLACE.fullmatch(match["np"] or match["name"])
                and not (match["np"] or "").startswith("member")
            ):
                if kind:
                    self.add(place, "is_a", Entity(kind, "thing"))
                self._where(place, max(0, self.text.find(" in ", match.end("name"))))

    def _named(self, whose: Entity, kind: str, organisation: Entity) -> None:
        """What an organisation is to the one whose it is: "Ana's choir is called the Larks"."""
        if not WORKPLACE.fullmatch(kind):
            return
        label: Label = "owns"
        if TEAM.fullmatch(kind):
            label = "member_of"
        elif SCHOOL.fullmatch(kind):
            label = "studies_at"
        elif re.fullmatch(r".*(?:company|firm|office|agency|department|ministry)", kind):
            label = "works_at"
        self.add(whose, label, organisation)
        self.add(organisation, "is_a", Entity(kind, "thing"))

    def _apply(self, rule: Rule, match: re.Match[str], subjects: list[Entity], text: str) -> None:
        label = rule.label
        targets, end = self._targets(rule, match, text)
        while targets and label in _LISTED and (item := _ITEM.match(text, end)):
            more = (_PET_ITEM if label == "has_pet" else _ITEM_PHRASE).match(text, item.end())
            if not more or self._begins_clause(item.end()) or _NO_ITEM.match(text, item.end()):
                break
            if rule.type == "place" and not re.match(CAPITAL, more["np"]):
                break
            others, end = self._targets(rule, more, text)
            targets += others
        beside = _WITH.search(text, end) if label in _SHARED else None
        companions = [Entity(n, "person") for n in _names(beside["names"])] if beside else []
        if label == "aged" and subjects[0].name.endswith("s"):
            return  # of several, each has an age of its own
        for subject in [*subjects, *companions]:
            for each in targets:
                self.add(subject, label, each)
                if label == "takes_medicine" and (why := _BECAUSE_OF.search(text, end)):
                    self.add(subject, "has_condition", Entity(why["np"], "thing"))
        if targets and rule.type == "event":
            self._when(targets[0], text, end)
        if targets and label == "owns" and targets[0].type == "thing":
            self._where(targets[0], end)

    def _begins_clause(self, at: int) -> bool:
        """Whether somebody does something from here on, so that it is no thing of a list."""
        head = _HEAD.match(self.text, at) or _OWN.match(self.text, at)
        named = head is not None and _WHO_DOES.match(self.text, head.end() + 1) is not None
        verb = VERB.match(self.text, self._passed(at))
        return named or verb is not None or _PRONOUN.match(self.text, at) is not None

    def _targets(self, rule: Rule, match: re.Match[str], text: str) -> tuple[list[Entity], int]:
        """What a verb leads to, nothing if it is not what the rule is about; and its end."""
        label, name, end = rule.label, match["np"], match.end("np")
        if rule.type == "person":
            people = self.people(match.start("np"))
            return (people[0][:1], people[1]) if people else ([], end)
        if label in _OWN_LABELS and NO_TARGET.fullmatch(name):
            return [], end
        if label == "made" and re.fullmatch(CAP, name):
            return [], end
        if label == "owns" and re.search(rf"\b{PET}$", name):
            return [], end
        if rule.type == "organisation" and label != "likes":
            place = self._organisation(rule, match)
            return ([place] if place else []), end
        if label == "has_pet" and (called := _CALLED.match(text, end)):
            many = name.endswith("s")
            pets = _names(called["names"]) if many else [_first_name(called["names"])]
            found = [Entity(pet, "pet") for pet in pets]
            for pet in () if many else found:
                self.add(pet, "is_a", Entity(name, "thing"))
            return found, called.start("names") + len(called["names"] if many else pets[0])
        if label == "owns" and WORKPLACE.fullmatch(name):
            return [self._place_of(name, end)], end
        if label == "speaks":
            language = re.search(r"[A-Z]\w+(?: Sign Language)?$", name)
            return ([Entity(language[0], "thing")] if language else []), end
        type = rule.type
        if label in ("likes", "dislikes") and re.match(r"[a-z-]+ing\b", name):
            whole = re.compile(rf"{re.escape(name)}(?: (?:in|with|on|to) [a-z][a-z ]*)?")
            name = whole.match(text, match.start("np"))[0]  # type: ignore[index]
            type = "activity"
        if label == "studies" and text[: match.start("np")].endswith("the "):
            type = "thing"  # an instrument
        return [Entity(name, type)], end

    def _organisation(self, rule: Rule, match: re.Match[str]) -> Entity | None:
        label, name, verb = rule.label, match["np"], match[0]
        capital = re.match(CAPITAL, name) is not None
        if label == "studies_at" and _TO_SCHOOL.match(verb):
            if not SCHOOL.fullmatch(name) or re.fullmatch("school|college|university", name):
                return None
        elif label == "studies_at" and not (capital or SCHOOL.fullmatch(name)):
            return None
        if (
            label == "works_at"
            and "started" in verb
            and SCHOOL.fullmatch(name)
            and (not re.search(r"work|job|appren|as", verb))
        ):
            return None
        surely = re.match(
            r".*(?:joined|belong|member|committee)|signed|plays? (?:\w+ )?for (?:the )?[A-Z]", verb
        )
        if label == "member_of" and not surely and not TEAM.fullmatch(name):
            return None
        if Entity(name, "person") in {end for t in self.found for end in (t.source, t.target)}:
            return None  # "works for Ana"
        placed = re.search(
            r"\b(?:work(?:s|ing)?|volunteers?)\b.* in$",
            self.text[match.start() : match.start("np") - 1],
        )
        if not WORKPLACE.fullmatch(name) and (not capital or placed):
            return None  # "works in Graz"
        if re.fullmatch(DATE, name) or re.search(rf"^same |['’]s? {ROLE}$", name):
            return None
        return self._place_of(name, match.end("np"))

    def _place_of(self, name: str, end: int) -> Entity:
        """An organisation: its name where it has one, what it is, where it lies."""
        more = re.compile(rf" (?:and|&) {CAP}(?=$|,| in )").match(self.text, end)
        if " " not in name and more:
            name, end = name + more[0], more.end()
        kind, owner = name, None
        if whose := re.match(rf"({CAP})['’]s? ([a-z].*)", name):
            owner, kind = Entity(whose[1], "person"), whose[2]
        where = _IN.match(self.text, end)
        if kind[0].islower():
            after = where.end() if where else end
            named = _BY_NAME.match(self.text, after) or (
                _APART.match(self.text, end) if not where else None
            )
            if named:
                place = Entity(named["np"], "organisation")
                if owner:
                    self.add(owner, "owns", place)
                self.add(place, "is_a", Entity(kind, "thing"))
                self._where(place, end if where else named.end())
                return place
        place = Entity(name, "organisation")
        self._where(place, end)
        return place

    def _where(self, what: Entity, at: int) -> None:
        if where := _IN.match(self.text, at):
            self.add(what, "located_in", Entity(where["np"], "place"))

    def _when(self, event: Entity, text: str, at: int) -> None:
        """The day and the place of an event."""
        for _ in range(2):  # in either order
            if where := _IN.match(text, at):
                self.add(event, "located_in", Entity(where["np"], "place"))
                at = where.end()
            if when := _ON.match(text, at):
                self.add(event, "happens_on", Entity(when["np"], "date"))
                at = when.end()
        if (place := _AT.match(text, at)) and re.match(CAPITAL, place["np"]):
            self.add(event, "located_in", Entity(place["np"], "organisation"))

    def _kind(self, subjects: list[Entity], text: str, at: int) -> None:
        """A job, or what an animal is."""
        match = _BE_A.match(text, at)
        if match is None:
            return
        name = match["np"]
        for subject in subjects:
            if subject.type == "pet" and match["a"] in ("a ", "an "):
                for known in [t for t in self.found if (t.source, t.label) == (subject, "is_a")]:
                    del self.found[known]
                self.add(subject, "is_a", Entity(name, "thing"))
            elif subject.type == "person" and JOB.fullmatch(name) and not NO_JOB.fullmatch(name):
                self.add(subject, "works_as", Entity(name, "activity"))
                where = _AT.match(text, match.end())
                if where and (re.match(CAPITAL, where["np"]) or WORKPLACE.fullmatch(where["np"])):
                    self.add(subject, "works_at", self._place_of(where["np"], where.end("np")))

    def _kin(self, subjects: list[Entity], text: str, at: int) -> None:
        """Kin that somebody has, or is; what somebody is taught or given."""
        kin = _HAS_KIN.match(text, at)
        while kin:
            one, end = kin["many"] in ("a ", "an "), kin.end()
            called = _CALLED.match(self.text, end)
            if called and not re.match("no|any", kin["many"]):
                names = [_first_name(called["names"])] if one else _names(called["names"])
                self._tie(subjects, kin["what"], [Entity(n, "person") for n in names], named=True)
                end = called.start("names") + len(names[0]) if one else called.end()
            elif one and not _OVER.search(kin["what"]):
                for subject in subjects:
                    unnamed = Entity(f"{subject.name}'s {kin['what']}", "person")
                    self._tie([subject], kin["what"], [unnamed], named=False)
            kin = _AND_KIN.match(text, end)
        if match := _IS_KIN.match(text, at):
            self._read.add(match.start("what"))
            self._tie([Entity(match["who"], "person")], match["what"], subjects, named=True)
        if match := _TEACHES.match(text, at):
            learner = Entity(match["who"] or match["whom"], "person")
            self.add(learner, "learns", Entity(match["np"] or match["what"], "thing"))
        if match := _GAVE.match(text, at):
            owner = Entity(match["who"], "person")
            if match["who"].islower():  # "Ana's uncle left her his boat"
                giver = self.about[0]
                owner = next((t.source for t in self.found if t.target == giver), giver)
            self.add(owner, "owns", Entity(match["np"], "thing"))


_LISTED = frozenset(
    "likes dislikes allergic_to has_condition takes_medicine speaks plays has_pet learns practises "
    "studies visited plans_to_visit owns bought made".split()
)
"""Labels whose verb may have several objects: "likes opera, rowing and silence"."""
_OWN_LABELS = frozenset("owns bought made likes dislikes".split())
_SHARED = frozenset(("visited", "plans_to_visit", "volunteers_at"))
"""What holds, too, for those with whom it is done."""
