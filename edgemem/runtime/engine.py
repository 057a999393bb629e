"""One GGUF model in one llama.cpp context: tokens in, text out.

Knows tokens, grammars and stop strings; knows nothing about memories. Uses llama.cpp's C
functions directly (llama.py loads them): the high-level `Llama.generate` matches cached prefixes by
token ids alone, re-loads the model to switch an adapter, and cuts silently.

Prompts become tokens in vocabulary.py. A `stage` may have LoRA adapters bound to it (adapters.py),
which its prompts are then computed with; and it keeps the KV of its last prompt (prefixes.py), so
that its fixed beginning is computed once. Flash attention is off: with it, logits depend on where a
prompt was split, and a reused prefix would no longer equal a fresh one.
"""

from __future__ import annotations

import codecs
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from edgemem.budget import Choice, Plan, admit
from edgemem.errors import InputError, ModelError
from edgemem.runtime import heap, llama, models, prefixfile, scoring, sizes, tune
from edgemem.runtime.adapters import Adapter, Adapters
from edgemem.runtime.grammars import Allowed, allows, grammar_sampler
from edgemem.runtime.llama import build_info
from edgemem.runtime.prefixes import Prefixes
from edgemem.runtime.sampling import Fork, pick, repeat_penalised
from edgemem.runtime.spans import Spans
from edgemem.runtime.stage import Stage
from edgemem.runtime.streams import (
    Generation,
    Options,
    Reason,
    Stream,
    check_length,
    check_numbers,
    held_back,
)
from edgemem.runtime.vocabulary import CLOSED, Prompt, Vocabulary
from edgemem.text import THOUGHT_TAGS, without_thoughts

__all__ = ["Adapter", "Engine", "Generation", "Prompt", "Stage", "Stream", "build_info"]

PREFIX_BYTES = 64_000_000


class Engine:
    """A loaded model. Safe to call from several threads: one generation runs at a time."""

    def __init__(
        self,
        model: Any,
        context: Any,
        path: Path,
        n_gpu_layers: int,
        flash_attention: bool,
        prefix_bytes: int,
        buffers: Mapping[str, int],
    ) -> None:
        lib = llama.library()
        self._lib, self._model, self._context = lib, model, context
        self._vocabulary = Vocabulary(lib, model, path.name)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._unfinished: Callable[[], Generator[str, None, Generation] | None] = lambda: None
        self.path = path
        self.n_ctx = int(lib.llama_n_ctx(context))
        self.n_params = int(lib.llama_model_n_params(model))
        self.n_gpu_layers, self.flash_attention = n_gpu_layers, flash_attention
        self._fixed = {"weights": int(lib.llama_model_size(model)), **buffers}
        self._adapters = Adapters(lib, model, context, path)
        self._prefixes = Prefixes(lib, context, prefix_bytes, self._switch)
        self._switch_s = 0.0
        self.plan: Plan | None = None  # what a memory limit has made of it

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        n_ctx: int = 2048,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_gpu_layers: int = 0,
        flash_attention: bool = False,
        tuned: bool = True,
        prefix_bytes: int = PREFIX_BYTES,
        memory_limit_bytes: int | None = None,
    ) -> Engine:
        """Load a GGUF model.

        path: a file or a name of the manifest; None is the bundled SmolLM2-135M-Instruct.
        n_ctx: tokens that a prompt and its answer may have together (rounded up to 256).
        prefix_bytes: memory for the KV of stages that take turns, beside that of the one that
        runs (23 KB a token for the bundled model); 0 keeps none.
        n_threads: threads for decoding (default: half the cores, because decoding threads that
        wait for a busy core stall each other); n_threads_batch: for prefill (default: all cores).
        flash_attention: a faster prefill, by about 15 %, and logits that then depend on how much of
        a prompt was cached. tuned: use what `edgemem models tune` has stored of the bundled model,
        if anything (tune.py): its file, and its threads where none are given. memory_limit_bytes:
        of weights, tokenizer, KV, buffers and prefixes; n_ctx and then prefix_bytes are turned down
        until they fit (budget.py), and `plan` says how far.
        Raises ModelNotFound, ModelError (damaged or unsupported file), InputError (bad number),
        MemoryBudgetExceeded.
        """
        if not 64 <= n_ctx < 2**31:
            raise InputError(f"n_ctx is {n_ctx}; it must be at least 64 tokens, and below 2**31")
        for name, given in (("n_threads", n_threads), ("n_threads_batch", n_threads_batch)):
            if given is not None and not 1 <= given <= 512:
                raise InputError(f"{name} is {given}; it must be 1 to 512, or None")
        if prefix_bytes < 0:
            raise InputError(f"prefix_bytes is {prefix_bytes}; it must be 0 or more")
        file, threads, threads_batch = tune.choose_file(
            path, tuned=tuned, n_gpu_layers=n_gpu_layers
        )
        plan = None
        if memory_limit_bytes is not None:
            wanted = Choice(n_ctx=n_ctx, prefix_bytes=prefix_bytes)
            plan = admit(wanted, partial(sizes.engine_bytes, file), memory_limit_bytes)
            n_ctx, prefix_bytes = plan.choice.n_ctx, plan.choice.prefix_bytes
        with llama.counted_buffers() as buffers:
            model, context = llama.open_model(
                file,
                n_ctx=n_ctx,
                n_threads=n_threads or threads,
                n_threads_batch=n_threads_batch or n_threads or threads_batch,
                n_gpu_layers=n_gpu_layers,
                flash_attention=flash_attention,
            )
        engine = cls(model, context, file, n_gpu_layers, flash_attention, prefix_bytes, buffers)
        engine.plan = plan
        return engine

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

    @property
    def notes(self) -> tuple[str, ...]:
        """What is turned off for this model, and why, in sentences; nothing for most."""
        return (*self._prefixes.notes, *self._vocabulary.notes())

    def memory(self) -> dict[str, int]:
        """Bytes of each part: weights (of the file, mapped), kv and compute and output (buffers of
        the context), adapters, prefixes (kept for stages that do not run)."""
        return {
            **self._fixed,
            "adapters": sum(adapter.bytes for adapter in self._adapters.all()),
            "prefixes": self._prefixes.bytes,
        }

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without BOS. special: read control tokens written in the text.

        Raises InputError on half of a surrogate pair, ModelError when the engine is closed.
        """
        return self._vocabulary.tokenize(text, special=special)

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt as `generate` would send it."""
        return len(self._vocabulary.prompt_tokens(prompt))

    def token_offsets(self, text: str) -> NDArray[np.int64]:
        """(n, 2) characters of each token of a text; see scoring.offsets."""
        return scoring.offsets(self, text)

    def log_probs(self, prompt: str, continuation: str) -> NDArray[np.float32]:
        """log p of each token of a text that follows a prompt: (n,) float32, natural logarithm.

        The two are tokenized apart, so begin the continuation with its space. After an empty
        prompt the first token follows BOS, or EOS where there is none.
        Raises InputError on half of a surrogate pair, ContextOverflow when both exceed n_ctx.
        """
        before = self._vocabulary.prompt_tokens(prompt) if prompt else [self._vocabulary.bos]
        return scoring.log_probs(self, before + self.tokenize(continuation), len(before))

    def text_log_probs(self, text: str) -> NDArray[np.float32]:
        """log p of each token of a text of any length; see scoring.text_log_probs."""
        return scoring.text_log_probs(self, text)

    # -- adapters ----------------------------------------------------------------------------

    def load_adapter(self, name: str, path: str | os.PathLike[str], scale: float = 1.0) -> Adapter:
        """Load a LoRA adapter (a GGUF file) of this model; it does nothing until it is bound.

        scale: multiplies the scales that it is bound with. Its size in memory is its file's.
        Raises AdapterError, naming the tensor, on a file that does not fit this model or that
        llama.cpp cannot run (adapterfile.py), and on a name that is in use.
        """
        with self._mine():
            return self._adapters.load(name, path, scale)

    def unload_adapter(self, name: str) -> None:
        """Free an adapter and take it out of every stage. Raises AdapterError if there is none."""
        with self._mine():
            self._prefixes.forget(self._adapters.unload(name))

    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded adapters, in the order of loading."""
        return self._adapters.all()

    def bind(self, stage: str, scales: Mapping[str, float]) -> None:
        """Let a stage's prompts be computed with these adapters, in place of those bound before.

        scales: by adapter name; several are added up, none at all (or 0) is the base model.
        Nothing is reloaded: the switch is made when the stage runs, in some microseconds, if
        another set was on. Raises AdapterError on an adapter that is not loaded.
        """
        with self._mine():
            self._adapters.bind(stage, scales)

    def warm(self, stage: str, beginning: Prompt, *, folder: Path | None = None) -> int:
        """Compute what a stage's prompts begin with, so that the next one starts from there.

        folder: keep it in files there, for other processes (prefixfile.py; a set of several
        adapters is not kept). They hold what the text says: none of the user's belongs into it.
        Returns the tokens that are held now. Raises as `stream` does.
        """
        tokens = self._vocabulary.prompt_tokens(beginning)
        check_length(len(tokens), 1, self.n_ctx)
        with self._mine():
            keyed = list(zip(tokens, self._adapters.sets(stage, tokens), strict=True))
            prompt = self._prefixes.keepable(keyed)
            if folder is not None and self._prefixes.has(prompt):
                return len(prompt)
            held = self._prefixes.enter(stage, prompt)
            members, same = self._adapters.identity, self._same
            if folder is None or (what := prefixfile.describe(prompt, members, same)) is None:
                self._prefixes.decode(prompt[held:])
            elif (state := prefixfile.read(folder, what)) is None or not self._prefixes.restore(
                prompt, state
            ):
                self._prefixes.decode(prompt[len(self._prefixes.held) :])
                prefixfile.write(folder, what, self._prefixes.state())
            self._prefixes.keep()
        return len(prompt)

    def _same(self) -> dict[str, Any]:
        """What two processes must have in common for one to use the other's KV."""
        return {
            "model": models.known_sha256(self.path),
            "build": build_info(),
            "gpu_layers": self.n_gpu_layers,
            "flash_attention": self.flash_attention,
        }

    def drop_prefixes(self) -> None:
        """Forget the KV of all earlier prompts, and with it what they said; the system gets its
        memory back, and what the switching of adapters has freed (bench/LOG.md)."""
        with self._mine():
            self._prefixes.clear()
            heap.give_back()

    def expert(self, stage: str) -> bool:
        """Whether a stage has adapters bound, and so knows its task without examples."""
        return self._adapters.bound(stage)

    def stage(self, name: str) -> Stage:
        """`generate` and `stream` with the stage given: `with engine.stage("update") as stage:`."""
        return Stage(self, name)

    # -- generation --------------------------------------------------------------------------

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Run a prompt to its end; see `stream` for the options and the errors."""
        stream = self.stream(prompt, **options)
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
        fork: tuple[str, str, float] | None = None,
        stage: str = "",
        should_stop: Callable[[], bool] | None = None,
        deadline_s: float | None = None,
    ) -> Stream:
        """Start an answer and yield its text piece by piece.

        prompt: chat messages ({"role", "content"}, through the GGUF's template) or a plain string.
        max_tokens: most tokens of the answer; None is what the window leaves. temperature 0 takes
        the likeliest token. stop: texts that end the answer, and are no part of it. schema: a JSON
        schema that the text is forced to follow; it is whole unless finish_reason is "length",
        "cancelled" or "deadline". within: texts; the answer is then a run of words of one of them,
        begun by a space, ended by a stop text of one token (spans.py). fork: two answers and a
        probability: where they part, the first one's token is taken if it is as probable as that,
        and only then. stage: whose adapters and cached prefix to use. should_stop: asked before
        each token, and between the batches of a long prompt. deadline_s: seconds that the answer
        may take from its first `next` on, with the wait for another's; what there is by then is
        the text, perhaps nothing. The engine is this thread's until the stream ends or is closed.
        A thought (`<think>…</think>`) is no part of the text, even one that is not finished.
        Raises InputError; ContextOverflow when prompt and max_tokens exceed n_ctx (nothing is ever
        cut); ModelError when closed.
        """
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        check_numbers(max_tokens, temperature, top_p, repeat_penalty, stop, deadline_s)
        tokens = self._vocabulary.prompt_tokens(prompt)
        check_length(len(tokens), max_tokens or 1, self.n_ctx)
        if schema is not None and within is not None:
            raise InputError("give schema or within, not both")
        limit = max_tokens or self.n_ctx - len(tokens)
        grammar = llama.grammar(schema) if schema is not None else None
        spans = None
        if within is not None:
            spans = Spans.quoting(within, stop, self.tokenize, self._vocabulary.piece)
        parting = None if fork is None else Fork.between(*fork, self.tokenize)
        rng = np.random.default_rng(seed)

        def choose(recent: list[int], allowed: Allowed | None) -> int:
            logits = repeat_penalised(self._logits(), recent[-64:], repeat_penalty)
            if not math.isfinite(top := float(logits.max())):
                raise ModelError(
                    f"{self.path.name} gave no numbers to choose a token by (the best is {top}); "
                    "the file is damaged, or this machine computes it wrongly: check it with "
                    "`edgemem models verify`, or load it with n_gpu_layers=0"
                )
            if parting is not None:
                logits = parting.decided(recent, logits)
            try:
                return pick(logits, temperature=temperature, top_p=top_p, rng=rng, allowed=allowed)
            except ValueError as exc:  # of a schema: texts to quote always let a token follow
                raise ModelError(f"no token can follow ({exc}); try another schema") from exc

        # A weak reference, for `close`: a strong one would keep a dropped stream's lock.
        itself: list[weakref.ref[Generator[str, None, Generation]]] = []
        pieces = self._run(
            itself, tokens, limit, grammar, spans, choose, stop, stage, should_stop, deadline_s
        )
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
        deadline_s: float | None,
    ) -> Generator[str, None, Generation]:
        deadline = math.inf if deadline_s is None else time.monotonic() + deadline_s

        def over() -> Reason | None:
            if should_stop is not None and should_stop():
                return "cancelled"
            return "deadline" if time.monotonic() >= deadline else None

        if not self._acquire(deadline_s):
            return Generation("", len(tokens), 0, 0, 0.0, 0.0, "deadline")
        sampler, vocabulary = None, self._vocabulary
        try:
            self._unfinished = itself[0]
            started = time.perf_counter()
            self._switch_s = 0.0
            prompt = list(zip(tokens, self._adapters.sets(stage, tokens), strict=True))
            cached = self._prefixes.enter(stage, prompt)
            ended = self._prefixes.decode(prompt[cached:], over)
            if grammar is not None:
                sampler = grammar_sampler(self._lib, vocabulary.handle, grammar)
            allowed = allows(self._lib, sampler) if sampler else None
            first = time.perf_counter()
            ttft_s, switch_s = first - started, self._switch_s
            answer: list[int] = []
            if spans is not None:
                allowed = spans.allowed(answer)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            said = text = ""
            sent = 0
            # What follows a schema or quotes is not thought, and may speak of the tags.
            free = grammar is None and spans is None
            waits = (*stop, *THOUGHT_TAGS) if free else stop
            while ended is None and len(answer) < limit:
                if (ended := over()) is not None:
                    break
                token = choose(answer, allowed)
                if sampler:
                    self._lib.llama_sampler_accept(sampler, token)
                if vocabulary.ends(token):
                    ended = "stop"
                    break
                answer.append(token)
                said += decoder.decode(vocabulary.piece(token))
                text = without_thoughts(said) if free else said
                end = min((i for s in stop if (i := text.find(s)) >= 0), default=-1)
                if end >= 0:
                    text, ended = text[:end], "stop"
                    decoder.reset()
                    break
                ready = len(text) - held_back(text, waits)
                if ready > sent:
                    paused = time.perf_counter()
                    yield text[sent:ready]
                    first += time.perf_counter() - paused  # the reader's time is not ours
                    sent = ready
                if len(answer) < limit:
                    self._prefixes.decode([(token, prompt[-1][1])])
            if tail := decoder.decode(b"", True):
                text = without_thoughts(said + tail) if free else said + tail
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
                finish_reason=ended or "length",
                switch_s=switch_s,
            )
        finally:
            if sampler:
                self._lib.llama_sampler_free(sampler)
            self._release()

    def _acquire(self, timeout_s: float | None = None) -> bool:
        """Wait until the engine is this thread's; whether it became so in time."""
        if self._owner == threading.get_ident():
            raise ModelError(
                "this thread has an unfinished stream; finish it or call its close() first"
            )
        if not self._lock.acquire(timeout=min(timeout_s or math.inf, threading.TIMEOUT_MAX)):
            return False
        if self._context is None:
            self._lock.release()
            raise ModelError(CLOSED)
        self._owner = threading.get_ident()
        return True

    def _release(self) -> None:
        self._owner = None
        self._lock.release()

    @contextmanager
    def _mine(self) -> Iterator[None]:
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def _switch(self, adapter_set: int) -> None:
        self._switch_s += self._adapters.use(adapter_set)

    def _logits(self) -> NDArray[np.float32]:
        pointer = self._lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self._vocabulary.size,))

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
            self._prefixes.close()
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
