"""One GGUF model in one llama.cpp context: tokens in, text or probabilities out.

It uses llama.cpp's C functions (llama.py), because the high-level `Llama.generate` matches cached
prefixes by token ids alone, re-loads the model to switch an adapter, and truncates silently. A
`stage` may have LoRA adapters bound to it (experts.py), and keeps the KV of its last prompt
(prefixes.py).
"""

from __future__ import annotations

import inspect
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from edgemem.budget import Choice, Plan, admit
from edgemem.errors import ContextOverflow, InputError, ModelError
from edgemem.runtime import llama, machine, models, prefixes, tune
from edgemem.runtime.experts import Adapter, Adapters
from edgemem.runtime.generation import (
    BEHIND,
    AnswerText,
    Generation,
    Options,
    Reason,
    Request,
    Sampler,
    Stream,
    check_length,
    log_p,
)
from edgemem.runtime.prefixes import Prefixes
from edgemem.runtime.vision import ImageTokens, Vision, check_projector, engine_bytes
from edgemem.runtime.vocabulary import CLOSED, NO_PROJECTOR, Pixels, Prompt, Vocabulary

__all__ = ["Adapter", "Engine", "Generation", "Prompt", "Stream"]

SCORED_ROWS = 64  # rows of logits in memory at once
SCORED_OVERLAP = 64  # tokens of context before those that a window scores
_SCORING = "scoring"  # the stage of scored texts, so that those that begin alike share a prefix
PREFIX_BYTES = 64_000_000
_FORKED = (
    "this process was forked from the one that loaded the model, whose threads and locks it lacks; "
    "load the model after the fork, or start processes by spawn"
)


class Engine:
    """A loaded model. Safe to call from several threads: one generation runs at a time. Not from a
    process that was forked after it was loaded."""

    def __init__(
        self,
        model: Any,
        context: Any,
        path: Path,
        n_gpu_layers: int,
        prefix_bytes: int,
        buffers: Mapping[str, int],
        vision: Vision | None = None,
    ) -> None:
        lib = llama.library()
        self._lib, self._model, self._context = lib, model, context
        self._vocabulary = Vocabulary(lib, model, path.name)
        self._lock, self._process = threading.Lock(), os.getpid()
        self._owner: int | None = None
        self._unfinished: Callable[[], Generator[str, None, Generation] | None] = lambda: None
        self.path = path
        self.n_ctx = int(lib.llama_n_ctx(context))
        self.n_params = int(lib.llama_model_n_params(model))
        self.n_gpu_layers = n_gpu_layers
        self._fixed = {"weights": int(lib.llama_model_size(model)), **buffers}
        self._adapters = Adapters(lib, model, context, path)
        self._vision = vision
        self._prefixes = Prefixes(lib, context, prefix_bytes, self._adapters, vision)
        self.plan: Plan | None = None  # what `load` chose under a memory limit

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        mmproj: str | os.PathLike[str] | None = None,
        n_ctx: int = 2048,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_gpu_layers: int = 0,
        tuned: bool = True,
        prefix_bytes: int = PREFIX_BYTES,
        memory_limit_bytes: int | None = None,
    ) -> Engine:
        """Load a GGUF model.

        path: a file or a name of the manifest; None is the bundled SmolLM2-135M-Instruct. mmproj:
        the file of a vision model's projector; with it, prompts may hold images. n_ctx: tokens that
        a prompt and its answer may have together, rounded up to a multiple of 256. prefix_bytes:
        memory for the KV of stages that are not running; 0 stores none. n_threads: threads for
        decoding (default: half the cores). n_threads_batch: threads for prefill (default: n_threads
        if that is given, else all cores). tuned: use the file and the threads that `edgemem models
        tune` has stored for the bundled model, if any (tune.py); threads that are given take
        precedence. memory_limit_bytes: for weights, tokenizer, KV, buffers, prefixes and projector;
        n_ctx and then prefix_bytes are reduced until they fit (budget.py), and `plan` records the
        result. Raises ModelNotFound, ModelError (damaged or unsupported file), InputError (bad
        number), MemoryBudgetExceeded.
        """
        _check_numbers(n_ctx, prefix_bytes, n_threads=n_threads, n_threads_batch=n_threads_batch)
        file, threads, threads_batch = tune.choose_file(
            path, tuned=tuned, n_gpu_layers=n_gpu_layers
        )
        projector = None if mmproj is None else models.find(mmproj)
        plan = None
        if memory_limit_bytes is not None:
            wanted = Choice(n_ctx=n_ctx, prefix_bytes=prefix_bytes)
            plan = admit(wanted, partial(engine_bytes, file, projector), memory_limit_bytes)
            n_ctx, prefix_bytes = plan.choice.n_ctx, plan.choice.prefix_bytes
        if projector is not None:
            check_projector(projector)
            machine.require_projector_runs(file, projector, n_gpu_layers)
        threads_batch = n_threads_batch or n_threads or threads_batch
        vision = None
        with llama.counted_buffers() as buffers:
            model, context = llama.open_model(
                file,
                n_ctx=n_ctx,
                n_threads=n_threads or threads,
                n_threads_batch=threads_batch,
                n_gpu_layers=n_gpu_layers,
            )
            try:
                if projector is not None:
                    vision = Vision(
                        model, context, projector,
                        n_threads=threads_batch, n_gpu_layers=n_gpu_layers,
                    )  # fmt: skip
            except BaseException:
                llama.library().llama_free(context)
                llama.library().llama_model_free(model)
                raise
        engine = cls(model, context, file, n_gpu_layers, prefix_bytes, buffers, vision)
        engine.plan = plan
        return engine

    # -- text and tokens ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def has_chat_template(self) -> bool:
        return self._vocabulary.has_chat_template

    @property
    def sees(self) -> bool:
        """Whether prompts may hold images."""
        return self._vision is not None

    @property
    def mmproj(self) -> Path | None:
        """The projector's file, if there is one."""
        return None if self._vision is None else self._vision.path

    @property
    def images_in_order(self) -> bool:
        """Whether the model reads image tokens causally and one position each, as it does text."""
        return self._vision is not None and self._vision.causal and not self._vision.mrope

    @property
    def notes(self) -> tuple[str, ...]:
        """What is turned off for this model, and why, in sentences; nothing for most."""
        of_images = self._vision.notes if self._vision is not None else ()
        return (*self._prefixes.notes, *of_images, *self._vocabulary.notes())

    def memory(self) -> dict[str, int]:
        """Bytes of each part: weights (of the file, mapped), kv and compute and output (buffers of
        the context), adapters, prefixes (stored for stages that are not running), projector (its
        weights, and the cached embeddings of images)."""
        parts = {
            **self._fixed,
            "adapters": sum(adapter.bytes for adapter in self._adapters.all()),
            "prefixes": self._prefixes.bytes,
        }
        if self._vision is not None:
            parts["projector"] = self._vision.bytes + self._vision.kept_bytes
        return parts

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without BOS. special: read control tokens written in the text.

        Raises InputError on half of a surrogate pair, ModelError when the engine is closed.
        """
        return self._vocabulary.tokenize(text, special=special)

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt as `generate` would send it."""
        return len(self._prompt_tokens(prompt)[0])

    def embeddings(self, pixels: Pixels) -> tuple[list[int], list[NDArray[np.float32]]]:
        """The tokens of an image in a prompt, and the embeddings of its parts (tokens below 0).

        pixels: (height, width, 3) uint8; each embedding (n, n_embd) float32. Errors as `stream`.
        """
        vision = self._vision
        if vision is None:
            raise ModelError(NO_PROJECTOR.format(self.path.name))
        picture = vision.see(pixels, self.n_ctx // 2)
        with self._owned():
            return picture.tokens, vision.embeddings(picture)

    def _prompt_tokens(self, prompt: Prompt) -> tuple[list[int], list[ImageTokens]]:
        """A prompt's tokens and its images. Keep the images alive until the prompt is decoded.

        All images together take at most half of n_ctx, if they can be scaled down to that.
        """
        pictures: list[ImageTokens] = []

        def see(pixels: Pixels, count: int) -> list[int]:
            assert self._vision is not None
            pictures.append(self._vision.see(pixels, self.n_ctx // 2 // count))
            return pictures[-1].tokens

        sees = see if self._vision is not None else None
        return self._vocabulary.prompt_tokens(prompt, sees), pictures

    def token_offsets(self, text: str) -> NDArray[np.int64]:
        """(n, 2) characters [start, end) of each token of a text, in order.

        A token that holds a part of a character spans all of it. Errors as `tokenize`.
        """
        return self._vocabulary.offsets(text, self.tokenize(text))

    # -- how likely a text is ----------------------------------------------------------------

    def log_probs(self, prompt: Prompt, continuation: str) -> NDArray[np.float32]:
        """log p of each token of a text that follows a prompt: (n,) float32, natural logarithm.

        The two are tokenized separately, so begin the continuation with its space. After an empty
        prompt the first token follows BOS, or EOS where there is none.
        Raises InputError on half of a surrogate pair, ContextOverflow when both exceed n_ctx.
        """
        before = self._vocabulary.prompt_tokens(prompt) if prompt else [self._vocabulary.bos]
        return self._score(before + self.tokenize(continuation), len(before))

    def text_log_probs(self, text: str) -> NDArray[np.float32]:
        """log p of each token of a text, the first after BOS: (n,) float32, natural logarithm.

        A text longer than n_ctx is scored in windows that overlap by 64 tokens. Errors as
        `log_probs`, except ContextOverflow.
        """
        tokens, bos = self.tokenize(text), self._vocabulary.bos
        found = np.empty(len(tokens), np.float32)
        start = 0
        while start < len(tokens):
            first = max(0, start - SCORED_OVERLAP)
            end = min(len(tokens), first + self.n_ctx - 1)
            found[start:end] = self._score([bos, *tokens[first:end]], 1 + start - first)
            start = end
        return found

    def _score(self, tokens: list[int], start: int) -> NDArray[np.float32]:
        """log p of tokens[start:], each given those before it; start is at least 1."""
        if len(tokens) > self.n_ctx:
            raise ContextOverflow(
                f"the text has {len(tokens)} tokens, but n_ctx is {self.n_ctx}; score a shorter "
                "one, or load the model with a larger n_ctx",
                prompt_tokens=len(tokens),
                n_ctx=self.n_ctx,
            )
        found = np.empty(len(tokens) - start, np.float32)
        with self._owned():
            cached = self._prefixes.enter(_SCORING, tokens[:start])
            self._prefixes.decode(tokens[cached:start])
            if start < len(tokens):
                found[0] = self._log_p(-1, tokens[start])
            for at in range(start, len(tokens) - 1, SCORED_ROWS):
                part = tokens[at : min(at + SCORED_ROWS, len(tokens) - 1)]
                self._prefixes.decode(part, every=True)
                for i in range(len(part)):
                    found[at + i + 1 - start] = self._log_p(i, tokens[at + i + 1])
        return found

    def _log_p(self, row: int, token: int) -> float:
        return log_p(self._require_finite(self._logits(row), "score"), token)

    # -- adapters ----------------------------------------------------------------------------

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> Adapter:
        """Load a LoRA adapter (a GGUF file) of this model; it has no effect until it is bound.

        It takes as much memory as its file.
        Raises AdapterError, naming the tensor, on a file that does not fit this model or that
        llama.cpp cannot run, and on a name that is in use.
        """
        with self._owned():
            return self._adapters.load(name, path)

    def unload_adapter(self, name: str) -> None:
        """Free an adapter and take it out of every stage. Raises AdapterError if there is none."""
        with self._owned():
            self._prefixes.forget(self._adapters.unload(name))

    def adapters(self) -> tuple[Adapter, ...]:
        """The loaded adapters, in the order of loading."""
        return self._adapters.all()

    def bind(self, stage: str, scales: Mapping[str, float]) -> None:
        """Use these adapters for a stage's prompts, in place of those bound before.

        scales: by adapter name. Several adapters are summed; an empty mapping (or scales of 0) is
        the base model. The switch is made when the stage runs. Raises AdapterError if an adapter is
        not loaded.
        """
        with self._owned():
            self._adapters.bind(stage, scales)

    def warm(self, stage: str, beginning: Prompt, *, folder: Path | None = None) -> int:
        """Compute the common beginning of a stage's prompts, so that the next one starts there.

        folder: store the KV in files there, for other processes (prefixes.py; not for a set of
        several adapters). The files reveal the text, so it must hold nothing of the user's.
        Returns how many tokens are cached now. Raises as `stream` does.
        """
        tokens, pictures = self._prompt_tokens(beginning)
        check_length(len(tokens), 1, self.n_ctx)
        with self._owned():
            prompt = self._prefixes.keepable(tokens)
            if folder is not None and self._prefixes.has(stage, prompt):
                return len(prompt)
            held = self._prefixes.enter(stage, prompt)
            what = None if folder is None else self._kv_description(stage, prompt)
            if folder is None or what is None:
                self._prefixes.decode(prompt[held:])
            elif (state := prefixes.read(folder, what)) is None or not self._prefixes.restore(
                prompt, state
            ):
                self._prefixes.decode(prompt[len(self._prefixes.held) :])
                prefixes.write(folder, what, self._prefixes.state())
            self._prefixes.keep()
        del pictures
        return len(prompt)

    def _kv_description(self, stage: str, prompt: Sequence[int]) -> dict[str, Any] | None:
        """What two processes must have in common for one to use the other's KV of a prompt."""
        what = prefixes.describe(prompt, self._adapters.identity(stage))
        if what is None:
            return None
        return {
            "model": models.known_sha256(self.path),
            "build": llama.build_info(),
            "gpu_layers": self.n_gpu_layers,
            **what,
        }

    def drop_prefixes(self) -> None:
        """Drop the KV of all earlier prompts, which reveals them, and the cached images.

        Freed memory is returned to the system.
        """
        with self._owned():
            self._prefixes.clear()
            if self._vision is not None:
                self._vision.forget()
            machine.trim_heap()

    def expert(self, stage: str) -> bool:
        """Whether a stage has adapters bound, and so knows its task without examples."""
        return self._adapters.is_bound(stage)

    # -- generation --------------------------------------------------------------------------

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Run a prompt to its end; see `stream` for the options and the errors."""
        return self.stream(prompt, **options).whole()

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Stream:
        """Start an answer and yield its text piece by piece.

        prompt: chat messages ({"role", "content"}, rendered by the GGUF's template) or a string.
        A content, or the string, may be a list of texts and images, (height, width, 3) uint8.
        max_tokens: limit of the answer; None (the default) is the rest of the window.
        temperature: 0 (the default) takes the likeliest token. top_p: 0.95 by default.
        repeat_penalty: 1 by default, which is none. seed: 0 by default.
        stop: texts that end the answer, and are no part of it.
        schema: a JSON schema that the text is forced to follow. The text is complete unless
        finish_reason is "length" or "cancelled".
        within: texts to quote. The answer is a run of words of one of them, after a space; a stop
        text of one token ends it.
        fork: (text, other, p). At the first token where the two texts differ, that of `text` is
        taken if its probability is at least p, and only then.
        branches: how many answers to compute, each from another of the likeliest first tokens; one
        of them is given, in one piece. 1 by default, and always with a recurrent model.
        choose: gets these answers with the logarithms of their probabilities, the likeliest first
        token first, and returns the index of one; None (the default) takes the most probable.
        stage: selects the adapters and the cached prefix.
        prefill: the beginning of the answer, which the model continues; it is no part of the text.
        should_stop: called before each token, and between the batches of a long prompt; the text is
        then what there is so far.
        The engine belongs to this thread until the stream ends or is closed. Without `schema` and
        `within`, a thought (`<think>…</think>`), even an unfinished one, is left out of the text.
        Raises InputError; ContextOverflow when prompt and max_tokens exceed n_ctx (nothing is ever
        truncated); ModelError when closed.
        """
        asked = Request(**options)
        tokens, pictures = self._prompt_tokens(prompt)
        tokens += self.tokenize(asked.prefill)
        check_length(len(tokens), asked.max_tokens or 1, self.n_ctx)
        sampler = Sampler(asked, self._lib, self._vocabulary)
        # For `close`. A weak reference: a strong one would keep a dropped stream and its lock.
        itself: list[weakref.ref[Generator[str, None, Generation]]] = []
        pieces = self._run(itself, asked, tokens, pictures, sampler)
        itself.append(weakref.ref(pieces))
        return Stream(pieces)

    def _run(
        self,
        itself: list[weakref.ref[Generator[str, None, Generation]]],
        asked: Request,
        tokens: list[int],
        pictures: list[ImageTokens],
        sampler: Sampler,
    ) -> Generator[str, None, Generation]:
        def interrupted() -> Reason | None:
            return "cancelled" if asked.should_stop is not None and asked.should_stop() else None

        self._acquire()
        try:
            self._unfinished = itself[0]
            started = time.perf_counter()
            self._adapters.switch_s = 0.0
            cached = self._prefixes.enter(asked.stage, tokens)
            ended = self._prefixes.decode(tokens[cached:], interrupted)
            pictures.clear()
            limit = asked.max_tokens or self.n_ctx - len(tokens)
            answer, said = sampler.answer, AnswerText(asked)
            with sampler.following_schema():
                first = time.perf_counter()
                ttft_s, switch_s = first - started, self._adapters.switch_s
                if asked.branches > 1 and ended is None and self._prefixes.rewind(len(tokens)):
                    sampler, said, ended = self._branched(
                        asked, len(tokens), sampler, limit, interrupted
                    )
                    answer, ttft_s = sampler.answer, time.perf_counter() - started
                while ended is None and len(answer) < limit:
                    if (ended := interrupted()) is not None:
                        break
                    token = sampler.next(self._require_finite(self._logits(), "choose"))
                    if token is None or said.add(self._vocabulary.piece(token), sampler.log_p):
                        ended = "stop"
                        break
                    if ready := said.ready():
                        paused = time.perf_counter()
                        yield ready
                        first += time.perf_counter() - paused  # the reader's time is not ours
                    if len(answer) < limit:
                        self._prefixes.decode([token])
            rest = said.rest()
            spent = time.perf_counter() - first
            if rest:
                yield rest
            return Generation(
                text=said.text,
                prompt_tokens=len(tokens),
                completion_tokens=len(answer),
                cached_tokens=cached,
                ttft_s=ttft_s,
                tokens_per_s=len(answer) / spent if spent > 0 else 0.0,
                finish_reason=ended or "length",
                switch_s=switch_s,
                log_p=sampler.log_p,
                marks=tuple(said.marks),
            )
        finally:
            self._release()

    def _branched(
        self,
        asked: Request,
        prompt_tokens: int,
        sampler: Sampler,
        limit: int,
        interrupted: Callable[[], Reason | None],
    ) -> tuple[Sampler, AnswerText, Reason]:
        """The chosen branch, its text, and why it ended.

        A branch's probability only falls from token to token, so a branch is dropped once it is
        BEHIND the first. If a branch is interrupted, the first branch is chosen.
        """
        found: list[tuple[Sampler, AnswerText, Reason]] = []
        for branch, token in sampler.branched(
            self._require_finite(self._logits(), "choose").copy()
        ):
            least = found[0][0].log_p - BEHIND if found else -math.inf
            if branch.log_p < least:
                break  # the other first tokens are less likely still
            said = AnswerText(asked)
            ended: Reason | None = None
            self._prefixes.rewind(prompt_tokens)
            while ended is None and branch.log_p >= least:
                if token is None or said.add(self._vocabulary.piece(token), branch.log_p):
                    ended = "stop"
                elif len(branch.answer) >= limit:
                    ended = "length"
                elif (ended := interrupted()) is None:
                    self._prefixes.decode([token])
                    token = branch.next(self._require_finite(self._logits(), "choose"))
            if ended == "cancelled":
                return found[0] if found else (branch, said, ended)
            if ended is not None:
                found.append((branch, said, ended))
        if asked.choose is None:
            return max(found, key=lambda one: one[0].log_p)
        return found[asked.choose([(said.text, branch.log_p) for branch, said, _ in found])]

    def _acquire(self) -> None:
        """Wait until this thread owns the engine."""
        if self._process != os.getpid():
            raise ModelError(_FORKED)
        if self._owner == threading.get_ident():
            raise ModelError(
                "this thread has an unfinished stream; finish it or call its close() first"
            )
        self._lock.acquire()
        if self._context is None:
            self._lock.release()
            raise ModelError(CLOSED)
        self._owner = threading.get_ident()

    def _release(self) -> None:
        self._owner, self._unfinished = None, lambda: None
        self._lock.release()

    @contextmanager
    def _owned(self) -> Iterator[None]:
        self._acquire()
        try:
            yield
        finally:
            self._release()

    def _logits(self, row: int = -1) -> NDArray[np.float32]:
        pointer = self._lib.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self._vocabulary.size,))

    def _require_finite(self, logits: NDArray[np.float32], use: str) -> NDArray[np.float32]:
        """The same logits. Raises ModelError, which names the use, if the largest is not finite."""
        if not math.isfinite(top := float(logits.max())):
            raise ModelError(
                f"{self.path.name} gave no numbers to {use} a token by (the best is {top}); "
                "the file is damaged, or this machine computes it wrongly: check it with "
                "`edgemem models verify`, or load it with n_gpu_layers=0"
            )
        return logits

    # -- the rest ----------------------------------------------------------------------------

    def close(self) -> None:
        """Free the model; a second time does nothing.

        Ends this thread's own unfinished stream, and waits for a generation of another thread. In
        a process that was forked from that of the model, does nothing. Raises ModelError if this
        thread is inside a call of the model, as a signal handler or a callback may be.
        """
        if self._process != os.getpid():
            return
        if self._owner == threading.get_ident():
            stream = self._unfinished()
            if stream is None or inspect.getgeneratorstate(stream) == inspect.GEN_RUNNING:
                raise ModelError("this thread is inside a call of the model; close it afterwards")
            stream.close()
        with self._lock:
            if self._context is None:
                return
            self._vocabulary.close()
            self._prefixes.close()
            if self._vision is not None:
                self._vision.close()
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_numbers(n_ctx: int, prefix_bytes: int, **threads: int | None) -> None:
    """Raise InputError, naming the argument of `Engine.load`, if it is out of its range."""
    if not 64 <= n_ctx < 2**31:
        raise InputError(f"n_ctx is {n_ctx}; it must be at least 64 tokens, and below 2**31")
    for name, given in threads.items():
        if given is not None and not 1 <= given <= 512:
            raise InputError(f"{name} is {given}; it must be 1 to 512, or None")
    if prefix_bytes < 0:
        raise InputError(f"prefix_bytes is {prefix_bytes}; it must be 0 or more")
