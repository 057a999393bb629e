"""What a message wants, so that it is answered with the right memories and in the right way.

A softmax regression over the message's embedding and its hashed word n-grams says it without a call
of the model, and whether the message may tell something to remember. An expert says what is wanted
better. The weights are fitted by `python -m bench.fit_intent`.

Knows a message and the one before it as text; knows no memory.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from math import exp
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem import language
from edgemem.errors import ModelError
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.encoder import softmax
from edgemem.runtime.engine import Engine
from edgemem.runtime.onnxfile import expert

__all__ = ["BUCKETS", "CLASSES", "REMARK", "STAGE", "TASKS", "TELLS", "Intent", "Want"]
__all__ += ["as_meant", "decided", "expert_prompt", "expert_target", "features", "intent"]
__all__ += ["as_change", "may_tell", "of_somebody", "only_asks"]

STAGE: Literal["intent"] = "intent"

Want = Literal[
    "recall", "overview", "task", "text", "edit", "general", "self", "erase", "act", "source"
]
"""recall: a fact of the user's life. overview: much of that life. task: advice that must agree with
that life. text: words that the user will send or say, which must agree with it too. edit: the last
answer in another form. general: knowledge of the world. self: about the assistant. erase: that
something is forgotten, or not kept. act: a deed that no program that only talks can do. source:
what the last answer rests on."""
REMARK: Literal["remark"] = "remark"
"""A message that wants nothing and tells nothing: "You're right." """
_BY_EXPERT: tuple[Want | None, ...] = (None, *(w for w in get_args(Want) if w != "source"))
"""The classes that an expert has learned, too; the regression alone decides the others."""
CLASSES: tuple[Want | Literal["remark"] | None, ...] = (*_BY_EXPERT, "source", REMARK)
"""The regression's classes. None: the message only tells something."""

TASKS: tuple[Want, ...] = ("task", "text")
"""The wants whose answers must agree with all that is known of the user."""
_OF_SOMEBODY: tuple[Want | None, ...] = ("recall", "overview", "general", *TASKS)
"""The wants in which a message may ask of somebody whom the one before it names."""
_TELLING = (None, *TASKS)  # these always may tell something: a task says what it is for
_ACT, _ERASE, _RECALL, _SELF = (CLASSES.index(want) for want in ("act", "erase", "recall", "self"))
_TASK, _TEXT = (CLASSES.index(want) for want in ("task", "text"))
_NOT_IF_SURE = [i for i, c in enumerate(CLASSES) if c not in ("recall", "general", "source")]
"""What a question cannot want that asks if something is so."""
_FAR_LIKELIER = 2.0
"""By so much more, in logits, the regression calls an expert's deed a request to forget."""
_LEAST: dict[Want | None, float] = {"erase": 0.02, "act": 0.01}
"""The least probabilities, by the regression, at which an expert may name a want that costs much if
it is mistaken: the message is refused, or not kept."""
MAY_TELL = 0.1
"""The least probability of telling something at which a message is remembered (bench/LOG.md)."""
_MAY_STILL_TELL: dict[Want, float] = {
    "erase": 0.5,
    "act": 0.02,
    "edit": 0.3,
    "text": 0.3,
    "overview": 0.3,
    "task": 0.15,
}
"""The same for a message that is a mere request by the expert (bench/LOG.md)."""

EXPERT_PROMPT = (
    "Say what the message wants: recall, overview, task, edit, general, self, erase, act; or that "
    "it tells something, or does both."
)
TELLS = "tell"
_BOTH = f"{TELLS} and "
_MAX_TOKENS = 6
_MANY = 8  # sentences of a message; with more, it counts as telling
_LAST_CHARS = 400  # read of a message: its end says what it wants
_BEFORE_CHARS = 200

_SURE, _SURE_REMARK = 0.5, 0.9
"""The least probabilities at which the regression names a want, and calls a message a remark."""
_REMARK_TELLS = 0.15
"""The probability of telling something at which a message is no mere remark."""

BUCKETS = 8192
"""Into how many buckets the n-grams are hashed."""
_LONGEST = 3  # words of an n-gram
_SCALE = 3.0  # length of the n-grams' vector, beside the embedding's 1
_NEWS = 0.75  # probability of telling at which "I meant Sunday" is news, though a question precedes
_MARKS = ("?", "？")
_MERE_NEWS = 0.01  # factor of the probability of mere news if a message ends in such a mark
_TOKEN = re.compile(r"[\w']+|[.,!?]")

FloatArray = NDArray[np.float32]
Names = Collection[str]


@dataclass(frozen=True, slots=True)
class Intent:
    """What a message wants, and whether it may tell something to remember.

    wants: None if it only tells something, if no want is probable enough, or if it is a mere
    remark, which tells nothing either. refers: whether it may refer to what was said before.
    doubtful: the regression alone says recall where this says general, or the other way round.
    """

    wants: Want | None
    tells: bool
    refers: bool = field(default=False, compare=False)
    doubtful: bool = field(default=False, compare=False)


def intent(
    engine: Engine, embedder: Embedder, text: str, before: str = "", *, caption: bool = False
) -> Intent:
    """What a message wants. before: what the user said before it in this conversation.

    caption: whether it came with images that the model does not see; then it tells, unless it asks.
    The regression alone finds remarks and questions for what the last answer rests on. It decides
    all without an expert, and if the expert fails; then the message counts as telling. Raises what
    the embedder raises.
    """
    text, before = language.plain(text), language.plain(before)
    if language.is_not_to_be_kept(text):
        return Intent("erase", tells=False)
    if caption and not language.asks(text):
        return Intent(None, tells=True)
    logits = _logits(embedder, text)
    if language.tells_an_end(text):
        logits[_ERASE] = -np.inf
    if language.asks_if_sure(text) and logits[_RECALL] > logits[_SELF]:
        logits[_NOT_IF_SURE] = -np.inf
    classes, telling = decided(logits[None])
    by_regression, tells, refers = CLASSES[classes[0]], bool(telling[0]), language.refers_back(text)
    if by_regression == REMARK:  # "740*" puts something right; "I like that one" may be news
        return Intent(
            None, tells=language.is_specific(text) or language.is_of_speaker(text), refers=refers
        )
    if by_regression == "source" or not engine.expert(STAGE):
        return Intent(by_regression, tells, refers)
    prompt = expert_prompt(text, before)
    try:
        answer = engine.generate(prompt, max_tokens=_MAX_TOKENS, stop=("\n",), stage=STAGE)
    except ModelError:  # the call that writes the answer will raise it
        return Intent(by_regression, tells=True, refers=refers)
    said = answer.text.strip()
    wants = _combined(said.removeprefix(_BOTH), exp(answer.log_p), text, logits)
    outvoted = wants == "erase" and said == TELLS
    told = said.startswith(TELLS) and not outvoted
    tells = wants is None or told or _has_news(embedder, text, logits, wants)
    return Intent(wants, tells, refers, doubtful={wants, by_regression} == {"general", "recall"})


def _combined(named: str, p_named: float, text: str, logits: FloatArray) -> Want | None:
    """The likeliest want by an expert and by the regression; None if it is below _LEAST.

    A want scores by the expert's probability times the root of the regression's. named: the want
    that the expert wrote, with the probability p_named; the regression says how the rest of the
    expert's probability is shared. logits: the regression's of the message.
    """
    by_expert = next((want for want in _BY_EXPERT if want == named), None)
    if by_expert == "task" and logits[_TEXT] > logits[_TASK]:  # the expert calls both a task
        by_expert = "text"
    if by_expert == "act" and logits[_ERASE] - logits[_ACT] >= _FAR_LIKELIER:
        by_expert = "erase"  # "Delete my locker code."
    p = softmax(logits[: len(_BY_EXPERT)])
    if text.rstrip().endswith(_MARKS):
        p[_BY_EXPERT.index(None)] *= _MERE_NEWS
        p /= p.sum()
    i = _BY_EXPERT.index(by_expert)
    p_expert = (1 - p_named) * p / max(1e-6, 1 - p[i])
    p_expert[i] = p_named
    best = int(np.argmax(p_expert * np.sqrt(p)))
    want = _BY_EXPERT[best]
    return want if p[best] >= _LEAST.get(want, 0.0) else None


def _has_news(embedder: Embedder, text: str, logits: FloatArray, wants: Want) -> bool:
    """Whether a message tells something by the regression, though by the expert it only asks. Each
    of several sentences is also read alone, less strictly if it is no question; many count as
    telling."""
    if _telling(logits) >= _MAY_STILL_TELL.get(wants, MAY_TELL):
        return True
    parts = language.sentences(text) if wants != "erase" else []
    if len(parts) > _MANY:
        return True
    return len(parts) > 1 and any(
        _telling(_logits(embedder, part)) >= (_SURE if language.asks(part) else MAY_TELL)
        for part in parts
    )


def _telling(logits: FloatArray) -> float:
    """The probability of telling something."""
    return float(1 / (1 + np.exp(-logits[-1])))


def only_asks(embedder: Embedder, text: str) -> bool:
    """Whether, by the regression, a message wants something and most likely tells nothing."""
    wants, _ = decided(_logits(embedder, text)[None])
    return CLASSES[wants[0]] is not None and not may_tell(embedder, text)


def as_meant(
    embedder: Embedder, text: str, before: str, after: Want | None, wanted: Intent
) -> tuple[str, Intent]:
    """A message as it is to be answered after the one before it, and what it wants then.

    "I meant Shona's" asks the question before of Shona, unless it likely tells something. after:
    what the message before wanted; None also where a client does not tell. wanted: the message's
    intent.
    """
    if after == "recall" or (after is None and language.asks(before)):
        said = language.plain(text)
        asked = language.meant(said, before)
        if asked and (wanted.wants == "recall" or _telling(_logits(embedder, said)) < _NEWS):
            return asked, Intent("recall", tells=False, refers=language.refers_back(asked))
    return text, wanted


def as_change(text: str, before: str, after: Want | None, wanted: Intent) -> tuple[str, Intent]:
    """A message that asks for a change of the answer before it, as it is to be answered, and what
    it wants then; any other as it is.

    before, after: the message before as it was answered, and what it wanted. A change of advice
    asks for that again. wanted: the message's intent.
    """
    said = language.plain(text)
    asks_so = wanted.wants in (None, "edit") and language.asks_to_change(said)
    if not (asks_so or (wanted.wants in (None, "erase") and language.says_change(said))):
        return text, wanted
    tells = language.is_specific(text) or language.is_of_speaker(text)  # as of a remark
    if after == "task" and wanted.wants != "edit":
        return f"{before} {text}", Intent("task", tells, refers=True)
    if after in ("text", "edit") or wanted.wants == "edit":
        return text, Intent("edit", tells, refers=True)
    return text, wanted


def of_somebody(
    text: str, before: str, after: Want | None, wanted: Intent, no_people: Callable[[], Names]
) -> tuple[str, Intent]:
    """A message as it is to be asked of the only person whom a message before it names, or of
    another in that one's place ("And for Tom?"), and what it wants then.

    before, after, wanted: as for `as_change`. no_people: returns names in lower case that are of no
    person.
    """
    other, after = (
        language.asks_of_another(text),
        after or ("recall" if language.asks(before) else None),
    )
    if wanted.wants not in _OF_SOMEBODY or not (other or language.has_pronoun(text)):
        return text, wanted
    name = language.one_named(before, no_people())
    if other and name and after in _OF_SOMEBODY:
        asked = before.replace(name, other)
        doubtful = after == "general"  # memory may tell of that other one
        return asked, Intent(
            after, tells=False, refers=language.refers_back(asked), doubtful=doubtful
        )
    asked = language.with_named(text, name)
    return (asked, replace(wanted, refers=language.refers_back(asked))) if asked else (text, wanted)


def may_tell(embedder: Embedder, text: str) -> bool:
    """Whether, by the regression, a message may tell something."""
    return _telling(_logits(embedder, text)) >= MAY_TELL


def decided(
    logits: FloatArray, may_tell: float = MAY_TELL
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The regression's decisions: classes of CLASSES, and whether messages may tell; both (n,).

    logits: (n, len(CLASSES) + 1), the last of telling. What is not sure becomes None, and so does a
    remark that may tell something; task and text count as one want. may_tell: the least probability
    at which a message that wants something may also tell.
    """
    p = softmax(logits[:, :-1])
    text = p[:, _TEXT] > p[:, _TASK]
    p[:, _TASK] += p[:, _TEXT]
    p[:, _TEXT] = 0
    likeliest, telling = p.argmax(axis=1), 1 / (1 + np.exp(-logits[:, -1]))
    remarks = likeliest == CLASSES.index(REMARK)
    sure = p.max(axis=1) >= np.where(remarks, _SURE_REMARK, _SURE)
    sure &= ~remarks | (telling < _REMARK_TELLS)
    likeliest[(likeliest == _TASK) & text] = _TEXT
    tells = np.where(remarks, ~sure, telling >= may_tell)
    tells |= np.isin(likeliest, [CLASSES.index(want) for want in _TELLING])
    return np.where(sure, likeliest, CLASSES.index(None)), tells


def _logits(embedder: Embedder, text: str) -> FloatArray:
    """A message's logits, as `decided` reads them. If the embedder is not that of the weights, the
    words alone decide. Weights: vector (dim, n), words (BUCKETS, n), bias (n,)."""
    w, text = expert("intent"), language.plain(text)
    buckets, values = features(text)
    logits = w["bias"] + values @ w["words"][buckets]
    if embedder.model_id == str(w["embedder"]):
        logits = logits + embedder.embed_query(text[-_LAST_CHARS:]) @ w["vector"]
    return logits


def features(text: str) -> tuple[NDArray[np.intp], FloatArray]:
    """The n-grams of a text's end: their buckets, and a value for each."""
    tokens = ["<s>", *_TOKEN.findall(text[-_LAST_CHARS:].lower()), "</s>"]
    grams = {
        " ".join(tokens[i : i + n])
        for n in range(1, _LONGEST + 1)
        for i in range(len(tokens) - n + 1)
    }
    hashes = [zlib.crc32(gram.encode()) % BUCKETS for gram in grams]
    buckets, counts = np.unique(hashes, return_counts=True)
    return buckets, (_SCALE * counts / np.linalg.norm(counts)).astype(np.float32)


def expert_prompt(text: str, before: str = "") -> str:
    """An expert's prompt. before: the user's previous message."""
    last, earlier = " ".join(text.split())[-_LAST_CHARS:], " ".join(before.split())
    return f"{EXPERT_PROMPT}\n\nBefore: {earlier[-_BEFORE_CHARS:]}\nMessage: {last}\nIt wants:"


def expert_target(wants: Want | None, *, tells: bool) -> str:
    """The text that an expert answers with, without its end-of-turn token.

    An expert separates neither text from task nor a source from the assistant itself.
    """
    if wants is None:
        return f" {TELLS}"
    named = {"text": "task", "source": "self"}.get(wants, wants)
    return f" {_BOTH if tells else ''}{named}"
