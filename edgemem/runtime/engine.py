"""One GGUF model in one llama.cpp context: tokens in, text out.

The only importer of llama_cpp. Knows prompts, tokens, grammars and the KV cache; knows nothing
about memories. Uses llama.cpp's C functions directly: the high-level `Llama.generate` matches cached
prefixes by token ids alone, re-loads the model to switch an adapter, and cuts silently.

Each `stage` owns one sequence of the unified KV cache, so that a stage's fixed prompt prefix is
computed once and stays when another stage runs. Flash attention is off: with it, logits depend on
where a prompt was split, and a reused prefix would no longer equal a fresh one.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ContextOverflow, InputError, ModelError
from edgemem.runtime import models
from edgemem.runtime.sampling import pick, repeat_penalised

__all__ = ["Engine", "Generation", "Prompt", "Stream"]

Prompt = str | Sequence[Mapping[str, str]]

_N_SEQ = 4  # stages whose prefixes stay cached: extraction, update, generation, and one for the rest
_N_BATCH = 512
_backend = threading.Lock()
_log_lines: list[str] = []


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


def _load_llama() -> Any:
    """llama_cpp's C functions, initialised once, with its log kept instead of printed."""
    from llama_cpp import llama_cpp as lib

    with _backend:
        if not hasattr(_load_llama, "log"):

            @lib.llama_log_callback  # type: ignore[untyped-decorator]
            def log(level: int, text: bytes, _user: object) -> None:
                if level >= 4:  # GGML_LOG_LEVEL_ERROR
                    _log_lines.append(text.decode("utf-8", "replace").strip())
                    del _log_lines[:-8]

            lib.llama_log_set(log, ctypes.c_void_p(0))
            lib.llama_backend_init()
            _load_llama.log = log  # type: ignore[attr-defined]  # ctypes needs it kept alive
    return lib


class Engine:
    """A loaded model. Safe to call from several threads: one generation runs at a time."""

    def __init__(self, lib: Any, model: Any, context: Any, path: Path, n_gpu_layers: int) -> None:
        self._lib, self._model, self._context = lib, model, context
        self._vocab = lib.llama_model_get_vocab(model)
        self._memory = lib.llama_get_memory(context)
        self._batch = lib.llama_batch_init(_N_BATCH, 0, 1)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._sequences: OrderedDict[str, tuple[int, list[int]]] = OrderedDict()
        self._grammars: dict[str, bytes] = {}
        self._template = self._read_template()
        self._control = self._control_pattern()
        self.path = path
        self.n_ctx = int(lib.llama_n_ctx(context))
        self.n_gpu_layers = n_gpu_layers

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
        n_ctx: tokens of the KV cache, shared by the prompt, the answer and the cached prefixes.
        n_threads: threads for decoding (default: half the cores, because decoding threads that
        wait for a busy core stall each other); n_threads_batch: for prefill (default: all cores).
        Raises ModelNotFound, ModelError (damaged or unsupported file), InputError (bad number).
        """
        if n_ctx < 64:
            raise InputError(f"n_ctx is {n_ctx}; it must be at least 64 tokens")
        file = models.find(os.fspath(path) if path is not None else models.DEFAULT_LLM)
        lib = _load_llama()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cores = cores or 1

        model_params = lib.llama_model_default_params()
        model_params.n_gpu_layers = n_gpu_layers
        _log_lines.clear()
        model = lib.llama_model_load_from_file(os.fsencode(file), model_params)
        if not model:
            raise ModelError(
                f"{file} cannot be loaded as a GGUF model ({'; '.join(_log_lines) or 'no reason given'}); "
                "check it with `edgemem models verify`, or pull it again"
            )
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = _N_BATCH
        params.n_seq_max = _N_SEQ
        params.kv_unified = True
        params.flash_attn_type = 0
        params.n_threads = n_threads or max(1, cores // 2)
        params.n_threads_batch = n_threads_batch or n_threads or cores
        context = lib.llama_init_from_model(model, params)
        if not context:
            lib.llama_model_free(model)
            raise ModelError(
                f"no context of n_ctx={n_ctx} for {file} ({'; '.join(_log_lines) or 'out of memory'}); "
                "try a smaller n_ctx"
            )
        return cls(lib, model, context, file, n_gpu_layers)

    # -- text and tokens ---------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without BOS. special: read control tokens written in the text."""
        data = text.encode("utf-8")
        room = len(data) + 8
        out = (ctypes.c_int32 * room)()
        n = self._lib.llama_tokenize(self._vocab, data, len(data), out, room, False, special)
        if n < 0:
            raise ModelError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        return list(out[:n])

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of a prompt as `generate` would send it."""
        return len(self._prompt_tokens(prompt))

    def _piece(self, token: int) -> bytes:
        out = ctypes.create_string_buffer(64)
        n = self._lib.llama_token_to_piece(self._vocab, token, out, 64, 0, False)
        if n < 0:
            out = ctypes.create_string_buffer(-n)
            n = self._lib.llama_token_to_piece(self._vocab, token, out, -n, 0, False)
        return out.raw[:n]

    def _read_template(self) -> Any:
        raw = self._lib.llama_model_chat_template(self._model, None)
        if not raw:
            return None
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        return Jinja2ChatFormatter(
            template=raw.decode("utf-8"),
            eos_token=self._token_text(self._lib.llama_vocab_eos(self._vocab)),
            bos_token=self._token_text(self._lib.llama_vocab_bos(self._vocab)),
        )

    def _token_text(self, token: int) -> str:
        raw = self._lib.llama_vocab_get_text(self._vocab, token) if token >= 0 else None
        return raw.decode("utf-8", "replace") if raw else ""

    def _control_pattern(self) -> re.Pattern[str]:
        """Matches the text of any control token, so that a message cannot end its own turn."""
        lib, vocab = self._lib, self._vocab
        texts = (
            self._token_text(t)
            for t in range(lib.llama_vocab_n_tokens(vocab))
            if lib.llama_vocab_is_control(vocab, t)
        )
        return re.compile("|".join(re.escape(t) for t in texts if len(t) > 1) or r"(?!)")

    def _defused(self, text: str) -> str:
        return self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenize(self._defused(prompt), special=True)
            bos = self._lib.llama_vocab_get_add_bos(self._vocab)
            return [self._lib.llama_vocab_bos(self._vocab), *tokens] if bos else tokens
        if self._template is None:
            raise ModelError(
                f"{self.path.name} has no chat template, so it takes a plain string, not messages; "
                "use an instruction-tuned GGUF for chat, such as the bundled SmolLM2-135M-Instruct"
            )
        messages = [{**m, "content": self._defused(m["content"])} for m in prompt]
        try:
            rendered = self._template(messages=messages).prompt
        except Exception as exc:  # a model's own Jinja may raise anything
            raise ModelError(f"the chat template of {self.path.name} refused the messages: {exc}") from exc
        return self.tokenize(rendered, special=True)

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
        stage: str = "",
        should_stop: Callable[[], bool] | None = None,
    ) -> Stream:
        """Start an answer and yield its text piece by piece.

        prompt: chat messages ({"role", "content"}, through the GGUF's template) or a plain string.
        max_tokens: most tokens of the answer; None is what the window leaves. temperature 0 takes
        the likeliest token. schema: a JSON schema that the text is forced to follow. stage: names
        the KV sequence (and, once bound, the adapters). should_stop: asked before each token.
        Raises ContextOverflow when prompt and max_tokens exceed n_ctx; nothing is ever cut.
        """
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}; it must be at least 1, or None")
        tokens = self._prompt_tokens(prompt)
        needed = len(tokens) + (max_tokens or 1)
        if needed > self.n_ctx:
            raise ContextOverflow(
                f"the prompt has {len(tokens)} tokens and {max_tokens or 1} are to follow: {needed} in "
                f"all, but n_ctx is {self.n_ctx}; shorten the prompt, ask for fewer tokens, or load "
                "the model with a larger n_ctx",
                prompt_tokens=needed,
                n_ctx=self.n_ctx,
            )
        limit = max_tokens or self.n_ctx - len(tokens)
        grammar = self._grammar(schema) if schema is not None else None
        rng = np.random.default_rng(seed)

        def choose(recent: list[int], allowed: Callable[[NDArray[np.intp]], NDArray[np.bool_]] | None) -> int:
            logits = repeat_penalised(self._logits(), recent[-64:], repeat_penalty)
            return pick(logits, temperature=temperature, top_p=top_p, rng=rng, allowed=allowed)

        return Stream(self._run(tokens, limit, grammar, choose, tuple(stop), stage, should_stop))

    def _run(
        self,
        tokens: list[int],
        limit: int,
        grammar: bytes | None,
        choose: Callable[..., int],
        stop: tuple[str, ...],
        stage: str,
        should_stop: Callable[[], bool] | None,
    ) -> Generator[str, None, Generation]:
        self._acquire()
        sampler = None
        try:
            started = time.perf_counter()
            seq, held, cached = self._prepare(stage, tokens, limit)
            self._decode(seq, held, tokens[cached:])
            if grammar is not None:
                sampler = self._grammar_sampler(grammar)
            allowed = self._allows(sampler) if sampler else None
            first = time.perf_counter()
            answer: list[int] = []
            data, sent = b"", 0
            reason: Literal["stop", "length", "cancelled"] = "length"
            while len(answer) < limit:
                if should_stop is not None and should_stop():
                    reason = "cancelled"
                    break
                token = choose(answer, allowed)
                if sampler:
                    self._lib.llama_sampler_accept(sampler, token)
                if self._lib.llama_vocab_is_eog(self._vocab, token):
                    reason = "stop"
                    break
                answer.append(token)
                data += self._piece(token)
                text = _whole_characters(data)
                end = min((i for s in stop if (i := text.find(s)) >= 0), default=-1)
                if end >= 0:
                    data, reason = text[:end].encode("utf-8"), "stop"
                    break
                ready = len(text) - _held_back(text, stop)
                if ready > sent:
                    yield text[sent:ready]
                    sent = ready
                if len(answer) < limit:
                    self._decode(seq, held, [token])
            text = data.decode("utf-8", "replace")
            if len(text) > sent:
                yield text[sent:]
            spent = time.perf_counter() - first
            return Generation(
                text=text,
                prompt_tokens=len(tokens),
                completion_tokens=len(answer),
                cached_tokens=cached,
                ttft_s=first - started,
                tokens_per_s=len(answer) / spent if spent > 0 else 0.0,
                finish_reason=reason,
            )
        finally:
            if sampler:
                self._lib.llama_sampler_free(sampler)
            self._owner = None
            self._lock.release()

    def _acquire(self) -> None:
        if self._owner == threading.get_ident():
            raise ModelError("this thread has an unfinished stream; finish it or call its close() first")
        self._lock.acquire()
        if self._context is None:
            self._lock.release()
            raise ModelError("the engine is closed; load it again with Engine.load(...)")
        self._owner = threading.get_ident()

    def _prepare(self, stage: str, tokens: list[int], limit: int) -> tuple[int, list[int], int]:
        """Give the stage a sequence that holds the longest usable prefix of `tokens`.

        Returns (sequence id, its tokens, how many of `tokens` it holds already). The last prompt
        token is always decoded again: its logits choose the first token of the answer.
        """
        lib, memory = self._lib, self._memory
        if stage not in self._sequences:
            used = {seq for seq, _ in self._sequences.values()}
            if len(used) == _N_SEQ:
                self._forget(next(iter(self._sequences)))
                used = {seq for seq, _ in self._sequences.values()}
            self._sequences[stage] = (min(set(range(_N_SEQ)) - used), [])
        self._sequences.move_to_end(stage)
        seq, held = self._sequences[stage]
        common = 0
        for ours, theirs in zip(held, tokens[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        if not lib.llama_memory_seq_rm(memory, seq, common, -1):
            lib.llama_memory_seq_rm(memory, seq, -1, -1)  # recurrent models cannot drop a tail
            common = 0
        del held[common:]
        others = [s for s in self._sequences if s != stage]
        while others and len(tokens) + limit + self._cells(others) > self.n_ctx:
            self._forget(others.pop(0))
        return seq, held, common

    def _cells(self, stages: Sequence[str]) -> int:
        return sum(len(self._sequences[s][1]) for s in stages)

    def _forget(self, stage: str) -> None:
        seq, _ = self._sequences.pop(stage)
        self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def _decode(self, seq: int, held: list[int], tokens: list[int]) -> None:
        """Append tokens to a sequence; logits are left for the last one."""
        batch = self._batch
        for start in range(0, len(tokens), _N_BATCH):
            part = tokens[start : start + _N_BATCH]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = len(held) + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = seq
                batch.logits[i] = start + i == len(tokens) - 1
            status = self._lib.llama_decode(self._context, batch)
            if status != 0:
                raise ModelError(
                    f"llama.cpp failed to decode {len(part)} tokens at position {len(held)} "
                    f"(status {status}; {'; '.join(_log_lines) or 'no reason given'})"
                )
            held.extend(part)

    def _logits(self) -> NDArray[np.float32]:
        pointer = self._lib.llama_get_logits_ith(self._context, -1)
        n = self._lib.llama_vocab_n_tokens(self._vocab)
        return np.ctypeslib.as_array(pointer, shape=(n,))

    # -- JSON schemas ------------------------------------------------------------------------

    def _grammar(self, schema: Mapping[str, Any]) -> bytes:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._grammars:
            from llama_cpp.llama_grammar import json_schema_to_gbnf

            try:
                self._grammars[key] = json_schema_to_gbnf(key).encode("utf-8")
            except Exception as exc:  # the converter asserts on what it does not support
                raise InputError(f"this JSON schema cannot be made into a grammar: {key[:200]}") from exc
        return self._grammars[key]

    def _grammar_sampler(self, grammar: bytes) -> Any:
        sampler = self._lib.llama_sampler_init_grammar(self._vocab, grammar, b"root")
        if not sampler:
            raise InputError(f"llama.cpp refused the grammar made from the JSON schema: {grammar[:200]!r}")
        return sampler

    def _allows(self, sampler: Any) -> Callable[[NDArray[np.intp]], NDArray[np.bool_]]:
        """A test of candidate tokens against the grammar.

        Asking about one token costs about a millisecond, about the whole vocabulary ten: so the
        sampler (see `pick`) asks about its favourite first.
        """
        lib = self._lib

        def allowed(candidates: NDArray[np.intp]) -> NDArray[np.bool_]:
            n = len(candidates)
            data = (lib.llama_token_data * n)()
            for i, token in enumerate(candidates):
                data[i].id = int(token)
            array = lib.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
            lib.llama_sampler_apply(sampler, ctypes.byref(array))
            return np.fromiter((data[i].logit == 0.0 for i in range(n)), dtype=np.bool_, count=n)

        return allowed

    # -- the rest ----------------------------------------------------------------------------

    def close(self) -> None:
        """Free the model. Waits for a running generation; may be called twice."""
        with self._lock:
            if self._context is None:
                return
            self._lib.llama_batch_free(self._batch)
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = self._model = None
            self._sequences.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_info() -> str:
    """llama.cpp's own line about the build (SIMD, threads)."""
    import llama_cpp

    flags = _load_llama().llama_print_system_info().decode("utf-8", "replace")
    return f"llama-cpp-python {llama_cpp.__version__} ({flags.strip()})"


def _whole_characters(data: bytes) -> str:
    """Decode UTF-8 up to the last complete character."""
    for cut in range(min(4, len(data) + 1)):
        try:
            return data[: len(data) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return data.decode("utf-8", "replace")


def _held_back(text: str, stop: Sequence[str]) -> int:
    """How many last characters may be the start of a stop string, and so must wait."""
    return max(
        (n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])),
        default=0,
    )
