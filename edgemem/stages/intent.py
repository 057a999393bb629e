"""What a message wants, so that it is answered with the right memories and in the right way.

Memories shown beside a riddle are quoted, and a question answered without them is answered with an
invention. Neither a mark nor a word tells the two apart ("where do i live", "guess what?"). A
softmax regression over the message's embedding and its hashed word n-grams does, for any model and
without a call of it; an expert, where there is one, does it better. The regression also tells
whether a message may tell something. Its weights are fitted by `python -m bench.fit_intent`.

Knows a message and the one before it as text; knows no memory.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError
from edgemem.runtime.embedder import Embedder
from edgemem.runtime.engine import Engine

__all__ = [
    "BUCKETS",
    "STAGE",
    "TASKS",
    "TELLS",
    "WANTS",
    "Intent",
    "Want",
    "Weights",
    "decided",
    "expert_prompt",
    "expert_target",
    "features",
    "intent",
    "only_asks",
    "shipped",
]

STAGE: Literal["intent"] = "intent"

Want = Literal["recall", "overview", "task", "text", "edit", "general", "self"]
"""recall: a fact of the user's life; overview: much of it; task: advice that must agree with it;
text: words that the user will send or say, which must too. edit: the last answer in another form;
general: knowledge of the world; self: of the assistant."""
WANTS: tuple[Want | None, ...] = (None, *get_args(Want))
"""The regression's classes. None: the message only tells something."""

TASKS: tuple[Want, ...] = ("task", "text")
"""What must agree with all that is known of the user."""
_TELLING = (None, *TASKS)  # a task says what it is for, which may be news
_TASK, _TEXT = WANTS.index("task"), WANTS.index("text")
MAY_TELL = 0.1
"""How probable it must be that a message tells something for it to be remembered (bench/LOG.md)."""

EXPERT_PROMPT = (
    "Say what the message wants: recall, overview, task, edit, general, self; or that it tells "
    "something, or does both."
)
TELLS = "tell"
_BOTH = f"{TELLS} and "
_MAX_TOKENS = 6
_LAST_CHARS = 400  # of a message: what is wanted comes last
_BEFORE_CHARS = 200

_SURE = 0.5
"""How probable what a message wants must be for the regression to name it."""

BUCKETS = 8192
"""Of the n-grams' hashes."""
_LONGEST = 3  # words of an n-gram
_SCALE = 3.0  # length of the n-grams' vector, beside the embedding's 1
_TOKEN = re.compile(r"[\w']+|[.,!?]")

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Intent:
    """wants: None if the message only tells something. tells: whether it may tell something that
    is to be remembered. doubtful: it is general to the expert, and recall to the regression."""

    wants: Want | None
    tells: bool
    doubtful: bool = field(default=False, compare=False)


@dataclass(frozen=True, eq=False)
class Weights:
    """vector: (dim, 9); words: (BUCKETS, 9); bias: (9,), all float32. The first columns are logits
    of WANTS, the last one is that of telling. embedder: the model id of the vectors."""

    vector: FloatArray
    words: FloatArray
    bias: FloatArray
    embedder: str


@cache
def shipped() -> Weights:
    """The weights that come with the package."""
    with (files("edgemem") / "data" / "intent.npz").open("rb") as file, np.load(file) as saved:
        vector, words, bias = (saved[n].astype(np.float32) for n in ("vector", "words", "bias"))
        return Weights(vector, words, bias, str(saved["embedder"]))


def intent(engine: Engine, embedder: Embedder, text: str, before: str = "") -> Intent:
    """What a message wants. before: what the user said before it in this conversation.

    The regression decides where there is no expert, or it fails. Raises what the embedder raises.
    """
    logits = _logits(embedder, text)
    classes, telling = decided(logits[None])
    wants, tells = WANTS[classes[0]], bool(telling[0])
    if not engine.expert(STAGE):
        return Intent(wants, tells)
    prompt = expert_prompt(text, before)
    try:
        answer = engine.generate(prompt, max_tokens=_MAX_TOKENS, stop=("\n",), stage=STAGE)
    except ModelError:  # what answers fails aloud
        return Intent(wants, tells=True)
    said = answer.text.strip()
    named = said.removeprefix(_BOTH)
    meant = next((want for want in WANTS if want == named), None)
    if meant == "task" and logits[_TEXT] > logits[_TASK]:  # all one to the expert
        meant = "text"
    tells = tells or said.startswith(TELLS) or meant in _TELLING
    return Intent(meant, tells, doubtful=wants == "recall" and meant == "general")


def only_asks(embedder: Embedder, text: str) -> bool:
    """Whether a message asks for something and by the regression hardly tells anything."""
    logits = _logits(embedder, text)
    wants, _ = decided(logits[None])
    return bool(WANTS[wants[0]] is not None and 1 / (1 + np.exp(-logits[-1])) < MAY_TELL)


def decided(
    logits: FloatArray, may_tell: float = MAY_TELL
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """What messages want by the regression, as classes of WANTS, and whether they may tell
    something; both (n,).

    logits: (n, 9). A want that is not sure is none; whether a task is a text need not be. may_tell:
    the probability from which a message that wants something tells something too.
    """
    p = np.exp(logits[:, :-1] - logits[:, :-1].max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    text = p[:, _TEXT] > p[:, _TASK]
    p[:, _TASK] += p[:, _TEXT]
    p[:, _TEXT] = 0
    likeliest, sure = p.argmax(axis=1), p.max(axis=1) >= _SURE
    likeliest[(likeliest == _TASK) & text] = _TEXT
    tells = np.isin(likeliest, [WANTS.index(want) for want in _TELLING])
    tells |= 1 / (1 + np.exp(-logits[:, -1])) >= may_tell
    return np.where(sure, likeliest, WANTS.index(None)), tells


def _logits(embedder: Embedder, text: str) -> FloatArray:
    """(9,). A vector of another model than the weights' says nothing: the words decide then."""
    weights = shipped()
    buckets, values = features(text)
    logits = weights.bias + values @ weights.words[buckets]
    if embedder.model_id == weights.embedder:
        logits = logits + embedder.embed_query(text[-_LAST_CHARS:]) @ weights.vector
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
    """What an expert reads of a message."""
    last, earlier = " ".join(text.split())[-_LAST_CHARS:], " ".join(before.split())
    return f"{EXPERT_PROMPT}\n\nBefore: {earlier[-_BEFORE_CHARS:]}\nMessage: {last}\nIt wants:"


def expert_target(wants: Want | None, *, tells: bool) -> str:
    """What an expert answers, which an end-of-turn token follows. A text is a task to it."""
    if wants is None:
        return f" {TELLS}"
    wants = "task" if wants == "text" else wants
    return f" {_BOTH if tells else ''}{wants}"
