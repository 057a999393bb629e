"""llama.cpp as a library: loaded once, quiet, its refusals turned into our errors.

The only importer of llama_cpp. Knows how a model, a context, a chat template and a grammar are
made; knows nothing of prompts or of generating, which is engine.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgemem.errors import InputError, ModelError
from edgemem.runtime.gguf import check_header

__all__ = [
    "build_info",
    "chat_formatter",
    "counted_buffers",
    "forget_errors",
    "ggml",
    "grammar",
    "last_errors",
    "library",
    "open_model",
    "open_vocabulary",
]

# Tokens of a prefill's step. llama.cpp has 512; what a layer computes of 256 stays in the cache
# (7 % less time for Q4_1, 7 to 19 % for Q8_0: bench/LOG.md).
N_BATCH = 256
_BUFFER = re.compile(rb"(KV|RS|compute|output) buffer size = +([\d.]+) MiB")

_loading = threading.Lock()
_loaded: list[Any] = []  # the library and its log callback, which ctypes needs kept alive
_log_lines: list[str] = []
_counting: list[dict[str, int]] = []  # those who want to know what is allocated


def library() -> Any:
    """llama_cpp's C functions, initialised once, with its log kept instead of printed."""
    with _loading:
        if _loaded:
            return _loaded[0]
        # libgomp reads this once, when it is loaded, which importing llama_cpp does (no other
        # dependency brings it). By default its threads spin while they wait for each other: on a
        # busy machine two threads then took 8.2 s for a prefill of 110 tokens, and take 0.5 s if
        # they sleep. On a quiet one it makes no difference that we could measure.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from llama_cpp import llama_cpp as lib

        @lib.llama_log_callback  # type: ignore[untyped-decorator]
        def log(level: int, text: bytes, _user: object) -> None:
            if level == 2 and (found := _BUFFER.search(text)):  # GGML_LOG_LEVEL_INFO
                kind, size = found[1].decode().lower(), int(float(found[2]) * 2**20)
                kind = {"rs": "kv"}.get(kind, kind)  # a recurrent state
                for kinds in _counting:
                    kinds[kind] = kinds.get(kind, 0) + size
            if level == 4:  # GGML_LOG_LEVEL_ERROR
                _log_lines.append(text.decode("utf-8", "replace").strip())
                del _log_lines[:-8]

        lib.llama_log_set(log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _loaded.extend((lib, log))
        return lib


def forget_errors() -> None:
    """Before a call whose complaints are to be told apart from older ones."""
    _log_lines.clear()


def ggml() -> Any:
    """ggml's C functions, for reading GGUF files; `library` has run, so its log is kept too."""
    library()
    from llama_cpp import _ggml

    return _ggml.libggml


def last_errors(otherwise: str) -> str:
    """What llama.cpp last complained of."""
    return "; ".join(_log_lines) or otherwise


def open_model(
    file: Path,
    *,
    n_ctx: int,
    n_threads: int,
    n_threads_batch: int,
    n_gpu_layers: int,
    flash_attention: bool = False,
) -> tuple[Any, Any]:
    """A model and a context of one sequence. Raises ModelError, naming the file and the cause."""
    check_header(file)
    lib = library()
    forget_errors()
    model_params = lib.llama_model_default_params()
    model_params.n_gpu_layers = n_gpu_layers
    model = lib.llama_model_load_from_file(os.fsencode(file), model_params)
    if not model:
        raise ModelError(
            f"{file} cannot be loaded as a GGUF model ({last_errors('no reason given')}); "
            "check it with `edgemem models verify`, or pull it again"
        )
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = N_BATCH
    params.n_seq_max = 1
    # With a cache of no more than the window, no prompt could share a beginning with the last one
    # and be computed as if it were new.
    params.swa_full = True
    params.flash_attn_type = int(flash_attention)
    params.n_threads = n_threads
    params.n_threads_batch = n_threads_batch
    context = lib.llama_init_from_model(model, params)
    if not context:
        lib.llama_model_free(model)
        raise ModelError(
            f"no context of n_ctx={n_ctx} for {file} ({last_errors('out of memory')}); "
            "try a smaller n_ctx"
        )
    return model, context


@contextmanager
def counted_buffers() -> Iterator[dict[str, int]]:
    """Bytes by kind ("kv", "compute", "output") of the buffers that llama.cpp makes meanwhile.

    It tells them in its log alone. Contexts that other threads make meanwhile are counted too.
    """
    kinds: dict[str, int] = {}
    _counting.append(kinds)
    try:
        yield kinds
    finally:
        _counting[:] = [c for c in _counting if c is not kinds]


def open_vocabulary(file: Path) -> Any:
    """A model without its weights, for its tokenizer. Raises ModelError as `open_model` does."""
    check_header(file)
    lib = library()
    _log_lines.clear()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(file), params)
    if not model:
        raise ModelError(
            f"the vocabulary of {file} cannot be read ({last_errors('no reason given')}); check it "
            "with `edgemem models verify`, or pull it again"
        )
    return model


def chat_formatter(template: str, *, eos: str, bos: str) -> Callable[..., Any]:
    """A function of `messages` that renders a model's own (sandboxed) Jinja template.

    Raises whatever Jinja raises on a template that is none.
    """
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    formatter: Callable[..., Any] = Jinja2ChatFormatter(
        template=template, eos_token=eos, bos_token=bos
    )
    return formatter


def grammar(schema: Mapping[str, Any]) -> bytes:
    """The GBNF grammar of a JSON schema. Raises InputError on one that cannot be followed."""
    return _grammar(json.dumps(schema))  # not sorted: the text's keys come in the schema's order


@lru_cache(maxsize=64)
def _grammar(schema: str) -> bytes:
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        return str(json_schema_to_gbnf(schema)).encode("utf-8")
    except Exception as exc:  # the converter asserts on what it does not support
        raise InputError(
            f"this JSON schema cannot be made into a grammar ({exc}): {schema[:200]}"
        ) from exc


def build_info() -> str:
    """llama.cpp's own line about the build (SIMD, threads)."""
    lib = library()
    import llama_cpp

    flags = lib.llama_print_system_info().decode("utf-8", "replace")
    return f"llama-cpp-python {llama_cpp.__version__} ({flags.strip()})"
