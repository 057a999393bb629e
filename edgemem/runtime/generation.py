"""One answer: its options, the choice of its tokens, and the text that its reader sees.

The next token is the model's choice among those that are allowed: all, those that a JSON schema's
grammar permits, or those that continue a quotation (`Spans`). The model's first choice is tested
first, then more and more of the likeliest tokens until one is allowed: testing the whole vocabulary
takes longer than the model's own step.
"""

from __future__ import annotations

import codecs
import ctypes
import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ContextOverflow, InputError, ModelError
from edgemem.inputs import THOUGHT_TAGS, shown, without_thoughts
from edgemem.language import content_words
from edgemem.runtime import llama
from edgemem.runtime.vocabulary import Vocabulary

__all__ = ["AnswerText", "Generation", "Options", "Reason", "Request", "Sampler", "Stream"]
__all__ += ["check_length", "close_json"]

Reason = Literal["stop", "length", "cancelled"]
Allowed = Callable[[NDArray[np.intp]], NDArray[np.bool_]]  # candidate tokens (m,) to (m,)

BEHIND = 4.0
"""A branch is left once the logarithm of its probability is so far below the first branch's."""

_LARGEST = sys.float_info.max  # a whole number may be larger
_RECENT = 64  # latest tokens that a repeat penalty applies to
_CERTAIN = 1e4  # a lead in logits that makes a token certain at any temperature in use
_LOOKS = (64, 512, 4096)  # how many of the likeliest tokens are tested at once, before all are
_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# A word goes on with a letter (also of two bytes), a digit, an apostrophe or a hyphen, and a number
# with a mark before a digit: "3.5", "10:30", "1,000".
_GOES_ON = re.compile(rb"[0-9A-Za-z'\-\x80-\xff]|[.,:/][0-9]")
# Strings are matched first, complete or not: a bracket in a string does not count. A number is
# complete once something follows it: "12" may be the beginning of "123".
_JSON_TOKEN = re.compile(
    r'(?P<whole>"(?:[^"\\]|\\.)*"|[][{}]|\b(?:true|false|null)\b|(?<![\d.eE+-])-?\d[\d.eE+-]*(?=[\s,\]}]))|".*',
    re.DOTALL,
)
_CLOSES = {"[": "]", "{": "}"}
_MAX_DEPTH = 100  # of brackets; Python reads about a thousand


# -- what is asked for, and what it took -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer and what it took.

    cached_tokens: prompt tokens whose KV was reused. switch_s: the part of ttft_s that switching
    to the stage's adapters took, 0 if they were active. log_p: natural logarithm of the probability
    of all chosen tokens, with the one that ended the answer if there is one. It includes the repeat
    penalty and the fork, but not temperature, top_p, schema and within. marks: for each token that
    is part of the text, the characters up to its end, and log_p up to there.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    tokens_per_s: float
    finish_reason: Reason
    switch_s: float = 0.0
    log_p: float = 0.0
    marks: tuple[tuple[int, float], ...] = ()

    def log_p_of(self, begin: int, end: int) -> float:
        """log_p of the tokens that text[begin:end] has, wholly or in part."""
        ends, sums = zip((0, 0.0), *self.marks, strict=True)
        first = bisect_right(ends, begin) - 1
        last = min(bisect_left(ends, end), len(ends) - 1)
        return float(sums[last] - sums[first])


class Options(TypedDict, total=False):
    """The options of `Engine.stream`, which explains them."""

    max_tokens: int | None
    temperature: float
    top_p: float
    repeat_penalty: float
    seed: int
    stop: Sequence[str]
    schema: Mapping[str, Any] | None
    within: Sequence[str] | None
    fork: tuple[str, str, float] | None
    branches: int
    choose: Callable[[Sequence[tuple[str, float]]], int] | None
    stage: str
    prefill: str
    should_stop: Callable[[], bool] | None


@dataclass(slots=True, kw_only=True)
class Request:
    """`Options` with their defaults. Raises InputError, which names the invalid option."""

    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 0.95
    repeat_penalty: float = 1.0
    seed: int = 0
    stop: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    within: Sequence[str] | None = None
    fork: tuple[str, str, float] | None = None
    branches: int = 1
    choose: Callable[[Sequence[tuple[str, float]]], int] | None = None
    stage: str = ""
    prefill: str = ""
    should_stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(self.stop):
            raise InputError("a stop string is empty; give at least one character each")
        if self.schema is not None and self.within is not None:
            raise InputError("give schema or within, not both")
        most = self.max_tokens
        branched = not self.temperature and self.free
        for name, fine, allowed in (
            ("max_tokens", most is None or most >= 1, "at least 1, or None"),
            ("temperature", 0.0 <= self.temperature <= _LARGEST, "0 (the likeliest) or more"),
            ("seed", self.seed >= 0, "0 or more"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("repeat_penalty", 0.0 < self.repeat_penalty <= _LARGEST, "above 0; 1 is none"),
            ("branches", self.branches == 1 or (self.branches > 1 and branched),
             "at least 1, and 1 with schema, within or a temperature above 0"),
        ):  # fmt: skip
            if not fine:
                raise InputError(f"{name} is {shown(getattr(self, name))}; it must be {allowed}")

    @property
    def free(self) -> bool:
        """Whether neither schema nor within binds the text, so that it may begin with a thought."""
        return self.schema is None and self.within is None


class Stream:
    """The pieces of one answer as they are made; `.result` is set when they end."""

    def __init__(self, pieces: Generator[str, None, Generation | None]) -> None:
        self._pieces = pieces
        self.result: Generation | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration as end:
            if end.value is not None:
                self.result = end.value
            raise StopIteration from None

    def whole(self) -> Generation:
        """The result, after reading to the end."""
        try:
            for _ in self:
                pass
        finally:
            self.close()
        assert self.result is not None
        return self.result

    def close(self) -> None:
        """Stop early and let others use the engine."""
        self._pieces.close()


def check_length(prompt_tokens: int, more: int, n_ctx: int) -> None:
    """Raise ContextOverflow if a prompt and `more` tokens exceed the window."""
    needed = prompt_tokens + more
    if needed > n_ctx:
        raise ContextOverflow(
            f"the prompt has {prompt_tokens} tokens and {shown(more)} are to follow: "
            f"{shown(needed)} in all, but n_ctx is {n_ctx}; shorten the prompt, ask for fewer "
            "tokens, or load the model with a larger n_ctx",
            prompt_tokens=needed,
            n_ctx=n_ctx,
        )


# -- what the reader sees --------------------------------------------------------------------------


class AnswerText:
    """The text of an answer so far. `ready` and `rest` give only what no later token can change.

    Thoughts are removed, but not with a schema or `within`: there the tags are part of the text.
    """

    def __init__(self, asked: Request) -> None:
        self.text = ""
        self.marks: list[tuple[int, float]] = []
        self._stop, self._free = asked.stop, asked.free
        self._waits = (*asked.stop, *THOUGHT_TAGS) if asked.free else asked.stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._raw = ""
        self._shown = 0

    def add(self, piece: bytes, log_p: float) -> bool:
        """Append a token's bytes. Returns whether a stop text came, before which the text ends.

        log_p: of the answer up to this token.
        """
        self._read(self._decoder.decode(piece))
        self.marks.append((len(self.text), log_p))
        ends = [at for stop in self._stop if (at := self.text.find(stop)) >= 0]
        if ends:
            self.text = self.text[: min(ends)]
            self._decoder.reset()
        return bool(ends)

    def ready(self) -> str:
        """The text that can be shown now and was not shown yet."""
        return self._until(len(self.text) - held_back(self.text, self._waits))

    def rest(self) -> str:
        """The text that was not shown yet, once the answer has ended."""
        if tail := self._decoder.decode(b"", True):
            self._read(tail)
        return self._until(len(self.text))

    def _read(self, new: str) -> None:
        self._raw += new
        self.text = without_thoughts(self._raw) if self._free else self._raw

    def _until(self, end: int) -> str:
        new = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return new


def held_back(text: str, stop: Sequence[str]) -> int:
    """How many last characters may be the start of a stop string, and so must wait."""
    return max(
        (n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])),
        default=0,
    )


def close_json(text: str) -> str | None:
    """The longest beginning of `text` that is JSON once its brackets are closed, with them closed.

    text: the beginning of a JSON text, such as an answer under a schema whose finish_reason is not
    "stop". A complete text is returned unchanged. An incomplete string, number or pair is left out,
    and so is everything from the first character that cannot be JSON or lies in more than 100
    brackets. None if there is neither a complete value nor an open bracket.
    """
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return text
    open_brackets, beginnings = "", []
    for token in _JSON_TOKEN.finditer(text):
        if token["whole"] is None:
            break
        if token[0] in _CLOSES:
            open_brackets = _CLOSES[token[0]] + open_brackets
        elif token[0] in ("]", "}"):
            open_brackets = open_brackets[1:]
        if len(open_brackets) > _MAX_DEPTH:
            break
        beginnings.append((token.end(), open_brackets))
    for end, closing in reversed(beginnings):
        closed = text[:end] + closing
        with suppress(ValueError, RecursionError):  # a key without its value, or what is no JSON
            json.loads(closed)
            return closed
    return None


# -- which token comes next ------------------------------------------------------------------------


class Sampler:
    """Chooses the tokens of one answer. answer: those chosen so far; log_p: as in `Generation`.

    Raises InputError on a schema, texts to quote, or a fork that cannot be followed.
    """

    def __init__(self, asked: Request, lib: Any, vocabulary: Vocabulary) -> None:
        self.answer: list[int] = []
        self.log_p = 0.0
        self._asked, self._lib, self._vocabulary = asked, lib, vocabulary
        self._grammar = None if asked.schema is None else llama.grammar(asked.schema)
        self._follows: Any = None  # llama.cpp's sampler of the grammar
        self._allowed: Allowed | None = None
        if asked.within is not None:
            spans = Spans.quoting(asked.within, asked.stop, vocabulary.tokenize, vocabulary.piece)
            self._allowed = spans.allowed(self.answer)
        self._fork = None if asked.fork is None else Fork.between(*asked.fork, vocabulary.tokenize)
        self._rng = np.random.default_rng(asked.seed)

    @contextmanager
    def following_schema(self) -> Iterator[None]:
        """Let `next` follow the schema, if there is one. The model must stay open meanwhile."""
        if self._grammar is None:
            yield
            return
        self._follows = grammar_sampler(self._lib, self._vocabulary.handle, self._grammar)
        try:
            self._allowed = allows(self._lib, self._follows)
            yield
        finally:
            self._lib.llama_sampler_free(self._follows)

    def next(self, logits: NDArray[np.float32]) -> int | None:
        """The next token, None at the answer's end.

        logits: (n_vocab,) float32. Raises ModelError if the schema lets no token follow.
        """
        asked = self._asked
        logits = self._weighed(logits)
        try:
            token = pick(
                logits,
                temperature=asked.temperature,
                top_p=asked.top_p,
                rng=self._rng,
                allowed=self._allowed,
            )
        except ValueError as exc:  # from a schema: `Spans` always allow a token
            raise ModelError(f"no token can follow ({exc}); try another schema") from exc
        return self._take(token, logits)

    def branched(self, logits: NDArray[np.float32]) -> Iterator[tuple[Sampler, int | None]]:
        """Yields a sampler for each of the likeliest first tokens, likeliest first, and the token.

        The sampler has chosen the token, which is None if it ends the answer. logits: (n_vocab,).
        """
        weighed = self._weighed(logits)
        likeliest = np.argsort(-weighed, kind="stable")[: self._asked.branches]
        for token in likeliest.tolist():
            branch = Sampler(self._asked, self._lib, self._vocabulary)
            yield branch, branch._take(token, weighed)

    def _weighed(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        recent = self.answer[-_RECENT:]
        logits = repeat_penalised(logits, recent, self._asked.repeat_penalty)
        return logits if self._fork is None else self._fork.decided(self.answer, logits)

    def _take(self, token: int, logits: NDArray[np.float32]) -> int | None:
        self.log_p += log_p(logits, token)
        if self._follows:
            self._lib.llama_sampler_accept(self._follows, token)
        if self._vocabulary.ends(token):
            return None
        self.answer.append(token)
        return token


@dataclass(frozen=True, slots=True)
class Fork:
    """A decision that one token makes: after the tokens `before`, `token` is taken if, and only if,
    its probability is at least `at_least`."""

    before: tuple[int, ...]
    token: int
    at_least: float

    @classmethod
    def between(
        cls, text: str, other: str, at_least: float, tokenize: Callable[[str], list[int]]
    ) -> Fork:
        """The first token where two answers differ; `token` is that of `text`.

        Raises InputError if one begins with the other.
        """
        ours, theirs = tokenize(text), tokenize(other)
        for i, (mine, yours) in enumerate(zip(ours, theirs, strict=False)):
            if mine != yours:
                return cls(tuple(ours[:i]), mine, at_least)
        raise InputError(
            f"the answers {text!r} and {other!r} do not part; give two that differ in a word"
        )

    def decided(self, answer: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits (n_vocab,) of the token after `answer`; at the fork they force its decision."""
        if tuple(answer) != self.before:
            return logits
        behind = logits.astype(np.float64) - float(logits.max())
        p = np.exp(behind[self.token]) / np.exp(behind).sum()
        logits = logits.copy()
        logits[self.token] = (
            float(logits.max()) + _CERTAIN if p >= self.at_least else -(_CERTAIN**2)
        )
        return logits


def log_p(logits: NDArray[np.float32], token: int) -> float:
    """Natural logarithm of a token's probability. logits: (n_vocab,) float32."""
    top = float(logits.max())
    return float(logits[token]) - top - float(np.log(np.exp(logits - top).sum()))


def repeat_penalised(
    logits: NDArray[np.float32], recent: Sequence[int], penalty: float
) -> NDArray[np.float32]:
    """Logits (n_vocab,), those of recent tokens divided (negative ones multiplied) by penalty."""
    if penalty == 1.0 or not recent:
        return logits
    logits = logits.copy()
    seen = np.unique(np.asarray(recent))
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    return logits


def pick(
    logits: NDArray[np.float32],
    *,
    temperature: float,
    top_p: float,
    rng: np.random.Generator,
    allowed: Allowed | None = None,
) -> int:
    """The next token.

    logits: (n_vocab,) float32. temperature 0: the likeliest. allowed: maps candidate tokens (m,)
    to (m,) booleans; a token it refuses is never returned. Raises ValueError if it refuses all.
    """
    favourite = _choose(logits, np.arange(len(logits)), temperature, top_p, rng)
    if allowed is None or allowed(np.array([favourite]))[0]:
        return favourite
    for look in (*(n for n in _LOOKS if n < len(logits)), len(logits)):
        asked = np.argpartition(logits, -look)[-look:]
        ok = asked[allowed(asked)]
        if len(ok):
            return _choose(logits[ok], ok, temperature, top_p, rng)
    raise ValueError("none of the vocabulary is allowed")


def _choose(
    logits: NDArray[np.float32],
    tokens: NDArray[np.intp],
    temperature: float,
    top_p: float,
    rng: np.random.Generator,
) -> int:
    if temperature <= 0.0:
        return int(tokens[np.argmax(logits)])
    order = np.argsort(-logits)
    behind = logits[order].astype(np.float64) - float(logits[order[0]])
    with np.errstate(over="ignore"):  # a tiny temperature: minus infinity is what is meant
        p = np.exp(behind / temperature)
    p /= p.sum()
    nucleus = int(np.searchsorted(np.cumsum(p), top_p)) + 1
    p = p[:nucleus] / p[:nucleus].sum()
    return int(tokens[order[rng.choice(len(p), p=p)]])


def grammar_sampler(lib: Any, vocabulary: Any, grammar: bytes) -> Any:
    """A sampler at a grammar's beginning; the caller frees it. Raises InputError."""
    sampler = lib.llama_sampler_init_grammar(vocabulary, grammar, b"root")
    if not sampler:
        raise InputError(
            f"llama.cpp refused the grammar made from the JSON schema: {grammar[:200]!r}"
        )
    return sampler


def allows(lib: Any, sampler: Any) -> Allowed:
    """A test of candidate tokens (m,) against the grammar, as (m,) booleans."""

    def allowed(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
        data = np.zeros(len(candidates), _TOKEN_DATA)
        data["id"] = candidates
        pointer = data.ctypes.data_as(lib.llama_token_data_p)
        array = lib.llama_token_data_array(data=pointer, size=len(data), selected=-1, sorted=False)
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        fine: NDArray[np.bool_] = data["logit"] == 0.0  # refused ones are at minus infinity
        return fine

    return allowed


# -- quotations ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _QuotableText:
    """starts: positions where a word begins. word_ends: for each position, and for the end, whether
    a word may end before it."""

    tokens: list[int]
    starts: list[int]
    word_ends: list[bool]


class Spans:
    """All runs of words in some texts, as tokens. A model that can only copy cannot invent.

    texts: token ids of each text, tokenized with a space before it. piece: a token's bytes.
    ends: tokens that may end an answer. They are allowed after a word, once the answer has a word
    that is no stop word, and at the end of its text.
    """

    def __init__(
        self, texts: Sequence[Sequence[int]], piece: Callable[[int], bytes], ends: Sequence[int]
    ) -> None:
        self._pieces = {token: piece(token) for tokens in texts for token in tokens}
        self._texts = [self._read(list(tokens)) for tokens in texts]
        self._ends = frozenset(ends)

    @classmethod
    def quoting(
        cls,
        within: Sequence[str],
        stop: Sequence[str],
        tokenize: Callable[[str], list[int]],
        piece: Callable[[int], bytes],
    ) -> Spans:
        """Spans of texts. stop: texts that end an answer; at least one must be a single token.

        Raises InputError if no text says anything or no stop text is one token.
        """
        # Only a token that is the whole stop text: some models put a space before any text.
        ends = [t for s in stop for t in tokenize(s) if piece(t) == s.encode()]
        if not ends or not any(text.strip() for text in within):
            raise InputError(
                f"within is {list(within)!r:.80} and stop {list(stop)!r}; give at least one text, "
                "and one stop text of a single token to end the answer"
            )
        return cls([tokenize(f" {text}") for text in within if text.strip()], piece, ends)

    def after(self, answer: Sequence[int]) -> set[int]:
        """The token ids that may follow an answer, all of whose tokens this has allowed."""
        run, following, at_word_end = list(answer), set[int](), False
        for text in self._texts:
            for start in text.starts:
                end = start + len(run)
                if text.tokens[start:end] == run:
                    following.update(text.tokens[end : end + 1])
                    at_word_end = at_word_end or text.word_ends[end]
        said = b"".join(self._pieces[token] for token in run) if at_word_end else b""
        if not following or content_words(said.decode("utf-8", "ignore")):
            following |= self._ends
        return following

    def allowed(self, answer: Sequence[int]) -> Allowed:
        """A test of candidate tokens (m,) -> (m,) by `after`. It reads `answer` at each call."""

        def test(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
            return np.isin(candidates, list(self.after(answer)))

        return test

    def _read(self, tokens: list[int]) -> _QuotableText:
        pieces = [self._pieces[token] for token in tokens]
        whole, offsets = b"".join(pieces), accumulate(map(len, pieces), initial=0)
        return _QuotableText(
            tokens,
            # A lone space counts: some models cut " 2023" into a space and four digits.
            [i for i, piece in enumerate(pieces) if i == 0 or piece[:1] == b" "],
            [_GOES_ON.match(whole, offset) is None for offset in offsets],
        )
