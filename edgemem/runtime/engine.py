"""One GGUF model in one llama.cpp context: tokens in, text out.

Knows tokens, grammars and stop strings; knows nothing about memories. Uses llama.cpp's C
functions directly (llama.py loads them): the high-level `Llama.generate` matches cached prefixes by
token ids alone, re-loads the model to switch an adapter, and cuts silently.

Prompts become tokens in vocabulary.py. Each `stage` keeps the KV of its last prompt (prefixes.py),
so that its fixed beginning is computed once. Flash attention is off: with it, logits depend on
where a prompt was split, and a reused prefix would no longer equal a fresh one.
"""

from __future__ import annotations

import codecs
import ctypes
import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ContextOverflow, InputError, ModelError
from edgemem.runtime import llama, models
from edgemem.runtime.llama import build_info
from edgemem.runtime.prefixes import Prefixes
from edgemem.runtime.sampling import pick, repeat_penalised
from edgemem.runtime.spans import Spans
from edgemem.runtime.vocabulary import CLOSED, Prompt, Vocabulary

__all__ = ["Engine", "Generation", "Prompt", "Stream", "build_info"]

Allowed = Callable[[NDArray[np.intp]], NDArray[np.bool_]]

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer and what it took. cached_tokens: prompt tokens whose KV was reused."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_s: float
    tokens_per_s: float
    finish_reason: Literal["stop", "length", "cancelled"]


class Stream:
    """The pieces of one answer as they are made; `.result` is set when they end."""

    def __init__(self, pieces: Generator[str, None, Generation]) -> None:
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

    def close(self) -> None:
        """Stop early and let others use the engine."""
        self._pieces.close()


class Engine:
    """A loaded model. Safe to call from several threads: one generation runs at a time."""

    def __init__(self, model: Any, context: Any, path: Path, n_gpu_layers: int) -> None:
        lib = llama.library()
        self._lib, self._model, self._context = lib, model, context
        self._vocabulary = Vocabulary(lib, model, path.name)
        self._batch = lib.llama_batch_init(llama.N_BATCH, 0, 1)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._unfinished: Callable[[], Generator[str, None, Generation] | None] = lambda: None
        self._grammars: dict[str, bytes] = {}
        self.path = path
        self.n_ctx = int(lib.llama_n_ctx(context))
        self.n_gpu_layers = n_gpu_layers
        self._prefixes = Prefixes(lib, context, self.n_ctx)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        n_ctx: int = 2048,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_gpu_layers: int = 0,
    ) -> Engine:
        """Load a GGUF model.

        path: a file or a name of the manifest; None is the bundled SmolLM2-135M-Instruct.
        n_ctx: tokens that a prompt and its answer may have together (rounded up to 256). As many
        may be kept beside them for stages that take turns, so the KV cache may take twice that.
        n_threads: threads for decoding (default: half the cores, because decoding threads that
        wait for a busy core stall each other); n_threads_batch: for prefill (default: all cores).
        Raises ModelNotFound, ModelError (damaged or unsupported file), InputError (bad number).
        """
        if not 64 <= n_ctx < 2**31:
            raise InputError(f"n_ctx is {n_ctx}; it must be at least 64 tokens, and below 2**31")
        for name, threads in (("n_threads", n_threads), ("n_threads_batch", n_threads_batch)):
            if threads is not None and not 1 <= threads <= 512:
                raise InputError(f"{name} is {threads}; it must be 1 to 512, or None")
        file = models.find(os.fspath(path) if path is not None else models.DEFAULT_LLM)
        affinity = getattr(os, "sched_getaffinity", None)  # Linux: the cores we may use
        cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
        model, context = llama.open_model(
            file,
            n_ctx=n_ctx,
            n_threads=n_threads or max(1, cores // 2),
            n_threads_batch=n_threads_batch or n_threads or cores,
            n_gpu_layers=n_gpu_layers,
        )
        return cls(model, context, file, n_gpu_layers)

    # -- text and tokens ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def busy(self) -> bool:
        """Whether a generation is under way, or begun and not read to its end."""
        return self._owner is not None

    @property
    def has_chat_template(self) -> bool:
        return self._vocabulary.has_chat_template

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without BOS. special: read control tokens written in the text.

        Raises InputError on half of a surrogate pair, ModelError when the engine is closed.
        """
        return self._vocabulary.tokenize(text, special=special)

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt as `generate` would send it."""
        return len(self._vocabulary.prompt_tokens(prompt))

    # -- generation --------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 0.95,
        repeat_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        within: Sequence[str] | None = None,
        stage: str = "",
        should_stop: Callable[[], bool] | None = None,
    ) -> Generation:
        """Run a prompt to its end; see `stream` for the arguments."""
        stream = self.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            repeat_penalty=repeat_penalty,
            seed=seed,
            stop=stop,
            schema=schema,
            within=within,
            stage=stage,
            should_stop=should_stop,
        )
        for _ in stream:
            pass
        assert stream.result is not None
        return stream.result

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 0.95,
        repeat_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        within: Sequence[str] | None = None,
        stage: str = "",
        should_stop: Callable[[], bool] | None = None,
    ) -> Stream:
        """Start an answer and yield its text piece by piece.

        prompt: chat messages ({"role", "content"}, through the GGUF's template) or a plain string.
        max_tokens: most tokens of the answer; None is what the window leaves. temperature 0 takes
        the likeliest token. stop: texts that end the answer, and are no part of it. schema: a JSON
        schema that the text is forced to follow; it is whole unless finish_reason is "length" or
        "cancelled". within: texts; the answer is then a run of words of one of them, begun by a
        space, ended by a stop text of one token (spans.py). stage: whose cached prefix to use (and,
        once bound, adapters). should_stop: asked before each token. The engine is this thread's
        until the stream ends or is closed.
        Raises InputError; ContextOverflow when prompt and max_tokens exceed n_ctx (nothing is ever
        cut); ModelError when closed.
        """
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        _check_numbers(max_tokens, temperature, top_p, repeat_penalty, stop)
        tokens = self._vocabulary.prompt_tokens(prompt)
        needed = len(tokens) + (max_tokens or 1)
        if needed > self.n_ctx:
            raise ContextOverflow(
                f"the prompt has {len(tokens)} tokens and {max_tokens or 1} are to follow: "
                f"{needed} in all, but n_ctx is {self.n_ctx}; shorten the prompt, ask for fewer "
                "tokens, or load the model with a larger n_ctx",
                prompt_tokens=needed,
                n_ctx=self.n_ctx,
            )
        if schema is not None and within is not None:
            raise InputError("give schema or within, not both")
        limit = max_tokens or self.n_ctx - len(tokens)
        grammar = self._grammar(schema) if schema is not None else None
        spans = self._spans(within, stop) if within is not None else None
        rng = np.random.default_rng(seed)

        def choose(recent: list[int], allowed: Allowed | None) -> int:
            logits = repeat_penalised(self._logits(), recent[-64:], repeat_penalty)
            if not math.isfinite(top := float(logits.max())):
                raise ModelError(
                    f"{self.path.name} gave no numbers to choose a token by (the best is {top}); "
                    "the file is damaged, or this machine computes it wrongly: check it with "
                    "`edgemem models verify`, or load it with n_gpu_layers=0"
                )
            try:
                return pick(logits, temperature=temperature, top_p=top_p, rng=rng, allowed=allowed)
            except ValueError as exc:  # of a schema: texts to quote always let a token follow
                raise ModelError(f"no token can follow ({exc}); try another schema") from exc

        # A weak reference, for `close`: a strong one would keep a dropped stream's lock.
        itself: list[weakref.ref[Generator[str, None, Generation]]] = []
        pieces = self._run(itself, tokens, limit, grammar, spans, choose, stop, stage, should_stop)
        itself.append(weakref.ref(pieces))
        return Stream(pieces)

    def _run(
        self,
        itself: list[weakref.ref[Generator[str, None, Generation]]],
        tokens: list[int],
        limit: int,
        grammar: bytes | None,
        spans: Spans | None,
        choose: Callable[[list[int], Allowed | None], int],
        stop: tuple[str, ...],
        stage: str,
        should_stop: Callable[[], bool] | None,
    ) -> Generator[str, None, Generation]:
        self._acquire()
        sampler, vocabulary = None, self._vocabulary
        try:
            self._unfinished = itself[0]
            started = time.perf_counter()
            cached = self._prefixes.enter(stage, tokens)
            self._decode(tokens[cached:])
            if grammar is not None:
                sampler = self._grammar_sampler(grammar)
            allowed = self._allows(sampler) if sampler else None
            first = time.perf_counter()
            ttft_s = first - started
            answer: list[int] = []
            if spans is not None:
                allowed = spans.allowed(answer)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text, sent = "", 0
            reason: Literal["stop", "length", "cancelled"] = "length"
            while len(answer) < limit:
                if should_stop is not None and should_stop():
                    reason = "cancelled"
                    break
                token = choose(answer, allowed)
                if sampler:
                    self._lib.llama_sampler_accept(sampler, token)
                if vocabulary.ends(token):
                    reason = "stop"
                    break
                answer.append(token)
                text += decoder.decode(vocabulary.piece(token))
                end = min((i for s in stop if (i := text.find(s)) >= 0), default=-1)
                if end >= 0:
                    text, reason = text[:end], "stop"
                    decoder.reset()
                    break
                ready = len(text) - _held_back(text, stop)
                if ready > sent:
                    paused = time.perf_counter()
                    yield text[sent:ready]
                    first += time.perf_counter() - paused  # the reader's time is not ours
                    sent = ready
                if len(answer) < limit:
                    self._decode([token])
            text += decoder.decode(b"", True)
            spent = time.perf_counter() - first
            if len(text) > sent:
                yield text[sent:]
            return Generation(
                text=text,
                prompt_tokens=len(tokens),
                completion_tokens=len(answer),
                cached_tokens=cached,
                ttft_s=ttft_s,
                tokens_per_s=len(answer) / spent if spent > 0 else 0.0,
                finish_reason=reason,
            )
        finally:
            if sampler:
                self._lib.llama_sampler_free(sampler)
            self._owner = None
            self._lock.release()

    def _spans(self, texts: Sequence[str], stop: Sequence[str]) -> Spans:
        piece = self._vocabulary.piece
        # A token that is the stop text, though some models put a space before any text.
        ends = [t for s in stop for t in self.tokenize(s) if piece(t) == s.encode()]
        if not ends or not any(text.strip() for text in texts):
            raise InputError(
                f"within is {list(texts)!r:.80} and stop {list(stop)!r}; give at least one text, "
                "and one stop text of a single token to end the answer"
            )
        quotable = [self.tokenize(f" {text}") for text in texts if text.strip()]
        return Spans(quotable, piece, ends)

    def _acquire(self) -> None:
        if self._owner == threading.get_ident():
            raise ModelError(
                "this thread has an unfinished stream; finish it or call its close() first"
            )
        self._lock.acquire()
        if self._context is None:
            self._lock.release()
            raise ModelError(CLOSED)
        self._owner = threading.get_ident()

    def _decode(self, tokens: list[int]) -> None:
        """Append tokens to the context's sequence; logits are left for the last one."""
        batch, held = self._batch, self._prefixes.held
        start = 0
        while start < len(tokens):
            part = tokens[start : start + llama.N_BATCH]
            if len(tokens) - start == llama.N_BATCH + 1:
                part.pop()  # a last batch of one would be computed otherwise: see prefixes.py
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = len(held) + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i == len(tokens) - 1
            status = self._lib.llama_decode(self._context, batch)
            if status != 0:
                raise ModelError(
                    f"llama.cpp failed to decode {len(part)} tokens at position {len(held)} "
                    f"(status {status}; {llama.last_errors('no reason given')})"
                )
            held.extend(part)
            start += len(part)

    def _logits(self) -> NDArray[np.float32]:
        pointer = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self._vocabulary.size,))

    # -- JSON schemas ------------------------------------------------------------------------

    def _grammar(self, schema: Mapping[str, Any]) -> bytes:
        key = json.dumps(schema)  # not sorted: the text's keys come in the schema's order
        if key not in self._grammars:
            self._grammars[key] = llama.grammar(schema)
        return self._grammars[key]

    def _grammar_sampler(self, grammar: bytes) -> Any:
        sampler = self._lib.llama_sampler_init_grammar(self._vocabulary.handle, grammar, b"root")
        if not sampler:
            raise InputError(
                f"llama.cpp refused the grammar made from the JSON schema: {grammar[:200]!r}"
            )
        return sampler

    def _allows(self, sampler: Any) -> Allowed:
        """A test of candidate tokens against the grammar.

        Asking about one token costs about a millisecond, about the whole vocabulary ten: so the
        sampler (see `pick`) asks about its favourite first.
        """
        lib = self._lib

        def allowed(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
            data = np.zeros(len(candidates), _TOKEN_DATA)
            data["id"] = candidates
            pointer = data.ctypes.data_as(lib.llama_token_data_p)
            array = lib.llama_token_data_array(
                data=pointer, size=len(data), selected=-1, sorted=False
            )
            lib.llama_sampler_apply(sampler, ctypes.byref(array))
            fine: NDArray[np.bool_] = data["logit"] == 0.0  # refused ones are at minus infinity
            return fine

        return allowed

    # -- the rest ----------------------------------------------------------------------------

    def close(self) -> None:
        """Free the model; a second time does nothing.

        Ends this thread's own unfinished stream, and waits for a generation of another thread.
        """
        if self._owner == threading.get_ident() and (stream := self._unfinished()) is not None:
            stream.close()
        with self._lock:
            if self._context is None:
                return
            self._vocabulary.close()
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_numbers(
    max_tokens: int | None,
    temperature: float,
    top_p: float,
    repeat_penalty: float,
    stop: tuple[str, ...],
) -> None:
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}; it must be at least 1, or None")
    if not (temperature >= 0.0 and math.isfinite(temperature)):
        raise InputError(f"temperature is {temperature}; it must be 0 (the likeliest) or more")
    if not 0.0 < top_p <= 1.0:
        raise InputError(f"top_p is {top_p}; it must be above 0 and at most 1")
    if not (repeat_penalty > 0.0 and math.isfinite(repeat_penalty)):
        raise InputError(f"repeat_penalty is {repeat_penalty}; it must be above 0; 1 is none")
    if not all(stop):
        raise InputError("a stop string is empty; give at least one character each")


def _held_back(text: str, stop: Sequence[str]) -> int:
    """How many last characters may be the start of a stop string, and so must wait."""
    return max(
        (n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])),
        default=0,
    )
