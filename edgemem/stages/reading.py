"""What stage 1 reads: each message that does not only ask, with what was said before it.

Knows messages and their words; knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from edgemem import language
from edgemem.results import Message, local_time

__all__ = [
    "CONTEXT",
    "MAX_SENTENCES",
    "PROMPT",
    "Reading",
    "label",
    "line",
    "pieces",
    "readings",
    "worth_reading",
]

PROMPT = (
    "Extract and organize relevant details. Response Format: Strictly JSON: "
    '{"facts": ["fact1", "fact2"]}.'
)

CONTEXT = 2  # earlier messages that an expert is shown with a message
MAX_SENTENCES = 40  # of one message; a longer one is a document: searchable, not read to its end
_PORTION_CHARS = 500
_MAX_SENTENCE_CHARS = 600  # a longer "sentence" is a list or a paste; it is read in pieces
_PAUSE = timedelta(hours=4)  # after a longer one, a message does not continue the earlier talk
_ITEM = re.compile(r"^[ \t]*(?:\d{1,2}[.)]|[-*•])[ \t]+(?:([^\n]*\w)[ \t]*$)?", re.M)
_ASIDE = re.compile(r"\[[^\[\]]{0,500}\]")  # "[shares a photo: ...]" is no sentence of the speaker


@dataclass(frozen=True, slots=True)
class Reading:
    """One question to an expert. source: index of the message that `message` is, or is part of.

    before: the earlier messages shown with it. places: their indices, negative in the context.
    names: of all who speak.
    """

    source: int
    message: Message
    before: tuple[Message, ...]
    places: tuple[int, ...]
    names: frozenset[str]

    @property
    def prompt(self) -> str:
        """The expert's prompt: the instruction, then the talk."""
        return f"{PROMPT}\n\n{self.talk}"

    @property
    def talk(self) -> str:
        """A line for each message, with absolute dates; the facts come from the last one.

        It ends with whom the facts are about: a small model does not look that far back for a name.
        """
        lines = [f"{label(m)}: {line(m, self.names)}\n" for m in (*self.before, self.message)]
        if self.before:
            lines = ["Before:\n", *lines[:-1], "Now:\n", lines[-1]]
        return f"{''.join(lines)}About {label(self.message)}:\n"


def readings(messages: Sequence[Message], context: Sequence[Message] = ()) -> list[Reading]:
    """The questions to an expert: one for each message, unless it only asks.

    Each shows the CONTEXT messages before, if they are of the same talk. A long message becomes
    several questions, on portions of whole sentences. context: as `extract` takes it.
    """
    said = [*context, *messages]
    names = frozenset(label(m) for m in said)
    found = []
    for source, message in enumerate(messages):
        earlier = range(max(source - CONTEXT, -len(context)), source)
        places = tuple(i for i in earlier if _is_of_one_talk(said[len(context) + i], message))
        before = tuple(_end_of(said[len(context) + i]) for i in places)
        if not language.is_question(line(message, names)):
            found += [Reading(source, part, before, places, names) for part in _portions(message)]
    return found


def worth_reading(sentence: str) -> bool:
    """Whether a sentence may hold a fact about its speaker.

    These may not: a question, fewer than three words, talk about the other person alone. A sentence
    without "I" or "we" needs a name, a number, or at least six words.
    """
    count = len(language.words(sentence))
    if language.is_question(sentence) or (count < 3 and not language.has_foreign_letter(sentence)):
        return False
    if language.is_of_speaker(sentence):
        return True
    return not language.is_of_listener(sentence) and (count >= 6 or language.is_specific(sentence))


def label(message: Message) -> str:
    return message.name or message.role.capitalize()


def pieces(text: str) -> list[str]:
    out: list[str] = []
    for sentence in language.sentences(_ASIDE.sub(" ", _itemised(text))):
        while len(sentence) > _MAX_SENTENCE_CHARS:
            cut = sentence.rfind(" ", 1, _MAX_SENTENCE_CHARS) + 1 or _MAX_SENTENCE_CHARS
            out.append(sentence[:cut].strip())
            sentence = sentence[cut:]
        out.append(sentence)
    return out


def line(message: Message, names: Collection[str] = ()) -> str:
    """A message with its dates written out, without the names by which it addresses the others.

    A small model takes "Thanks, Ana!" for the beginning of something about Ana.
    """
    told = _itemised(message.content)
    text = " ".join(language.absolute(told, local_time(message.timestamp))[0].split())
    others = [name for name in names if name != label(message)]
    return language.without_vocatives(
        text, lambda called: any(n.startswith(called) for n in others)
    )


def _itemised(text: str) -> str:
    """The items of a list as sentences: in one line "3." would belong to the item before it."""
    return _ITEM.sub(lambda item: f"{item[1]}." if item[1] else "", text)


def _is_of_one_talk(earlier: Message, later: Message) -> bool:
    begun, now = (datetime.fromisoformat(m.timestamp) for m in (earlier, later))
    return abs(now - begun) <= _PAUSE


def _end_of(message: Message) -> Message:
    """The last sentences of a message, in which it asks what the next one answers."""
    if len(message.content) <= _PORTION_CHARS:
        return message
    kept = ""
    for piece in reversed(pieces(message.content)):
        if len(kept) + len(piece) > _PORTION_CHARS:
            break
        kept = f"{piece} {kept}".strip()
    return replace(message, content=kept or message.content[-_PORTION_CHARS:])


def _portions(message: Message) -> list[Message]:
    """A message; if it is long, its parts, each of whole sentences."""
    if len(message.content) <= _PORTION_CHARS:
        return [message]
    portions, text = [], ""
    for piece in [*pieces(message.content)[:MAX_SENTENCES], ""]:
        if text and (not piece or len(text) + len(piece) > _PORTION_CHARS):
            portions.append(replace(message, content=text))
            text = ""
        text = f"{text} {piece}".strip()
    return portions
