"""llama.cpp as a library: loaded once, quiet, its refusals turned into our errors.

The only importer of llama_cpp, except for its libmtmd (vision.py). It makes models, contexts, chat
templates and grammars, predicts a model's memory before it is loaded, and unpacks a file's tensors
to float32.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgemem.budget import Choice
from edgemem.errors import InputError, ModelError
from edgemem.runtime import machine
from edgemem.runtime.gguf import Header, Tensor, check_header, open_header, read_header, read_only

__all__ = ["TensorType", "Tensors", "build_info", "chat_formatter", "counted_buffers", "decode"]
__all__ += ["engine_bytes", "forget_errors", "grammar", "last_errors", "library", "load_model"]
__all__ += ["log_callback", "open_model", "tensor_type", "try_out", "wrong_tensor"]

# Tokens of a prefill step. llama.cpp's default is 512; a layer's results for 256 fit in the cache.
N_BATCH = 256
STAGES = 3  # that have a long prompt of their own: extraction, update, generation or reply
_TRIED = 4  # tokens of a child's trial batch: as many as a repacked product takes at once
_BUFFER = re.compile(rb"(KV|RS|compute|output) buffer size = +([\d.]+) MiB")
_F16, _F32 = 2, 4
_TOKEN_BYTES, _MERGE_BYTES = 160, 170  # per entry of llama.cpp's tables
_ADVICE = "check it with `edgemem models verify`, or pull it again"

FloatArray = NDArray[np.float32]

_loading = threading.Lock()
_loaded: list[Any] = []  # the library and its log callback, which ctypes needs kept alive
_log_lines: list[str] = []
_counting: dict[int, dict[str, int]] = {}  # the dicts of open `counted_buffers`, by identity


def library() -> Any:
    """llama_cpp's C functions, initialised once, with its log kept instead of printed."""
    with _loading:
        if _loaded:
            return _loaded[0]
        # libgomp reads this once, when importing llama_cpp loads it (no other dependency does). By
        # default its threads spin while they wait for each other, which makes a prefill on a busy
        # machine many times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from llama_cpp import llama_cpp as lib

        @lib.llama_log_callback  # type: ignore[untyped-decorator]
        def log(level: int, text: bytes, _user: object) -> None:
            if level == 2 and (found := _BUFFER.search(text)):  # GGML_LOG_LEVEL_INFO
                kind, size = found[1].decode().lower(), int(float(found[2]) * 2**20)
                kind = {"rs": "kv"}.get(kind, kind)  # a recurrent state
                for kinds in list(_counting.values()):
                    kinds[kind] = kinds.get(kind, 0) + size
            if level == 4:  # GGML_LOG_LEVEL_ERROR
                _log_lines.append(text.decode("utf-8", "replace").strip())
                del _log_lines[:-8]

        lib.llama_log_set(log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        _loaded.extend((lib, log))
        return lib


def log_callback() -> Any:
    """The callback that stores llama.cpp's log, for its libraries that have a log of their own."""
    library()
    return _loaded[1]


def forget_errors() -> None:
    """Clear the stored errors, so that `last_errors` tells only those of the next calls."""
    _log_lines.clear()


def last_errors(otherwise: str = "no reason given") -> str:
    """The last errors in llama.cpp's log; `otherwise` if there are none."""
    return "; ".join(_log_lines) or otherwise


def open_model(
    file: Path,
    *,
    n_ctx: int,
    n_threads: int,
    n_threads_batch: int | None = None,
    n_gpu_layers: int = 0,
    extra_buffers: bool | None = None,
) -> tuple[Any, Any]:
    """A model and a context of one sequence.

    n_threads_batch: for prefill; None takes n_threads. extra_buffers: whether weights are repacked;
    None asks a child process what this machine survives (machine.py). Raises ModelError, naming the
    file and the cause.
    """
    if extra_buffers is None:
        check_header(file)
        extra_buffers = machine.extra_buffers(file, n_gpu_layers)
    lib = library()
    model = load_model(file, n_gpu_layers=n_gpu_layers, use_extra_bufts=extra_buffers)
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = N_BATCH
    params.n_seq_max = 1
    # If the cache held only the sliding window, a prompt could not reuse the beginning that it
    # shares with the last one and still equal a fresh computation.
    params.swa_full = True
    # With flash attention, logits depend on where a prompt was split, and a reused prefix would not
    # equal a fresh one.
    params.flash_attn_type = 0
    params.n_threads = n_threads
    params.n_threads_batch = n_threads_batch or n_threads
    context = lib.llama_init_from_model(model, params)
    if not context:
        lib.llama_model_free(model)
        raise ModelError(
            f"no context of n_ctx={n_ctx} for {file} ({last_errors('out of memory')}); "
            "try a smaller n_ctx"
        )
    return model, context


def try_out(file: str, n_gpu_layers: int, extra_buffers: bool) -> None:
    """Load a model, decode a batch and a token. Runs in a child of machine.py, which may crash.

    Raises ModelError as `open_model` does, or if nothing was decoded.
    """
    with suppress(ImportError):  # Windows has none
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, context = open_model(
        Path(file),
        n_ctx=2 * _TRIED,
        n_threads=1,
        n_threads_batch=min(2, machine.cores()),
        n_gpu_layers=n_gpu_layers,
        extra_buffers=extra_buffers,
    )
    for n in (_TRIED, 1):
        decode(context, [0] * n)


def decode(context: Any, tokens: Sequence[int]) -> None:
    """Decode tokens after those of a context, and wait for the result. Raises ModelError."""
    lib = library()
    ids = (ctypes.c_int32 * len(tokens))(*tokens)  # stays alive here: a batch only points to it
    if status := lib.llama_decode(context, lib.llama_batch_get_one(ids, len(tokens))):
        raise ModelError(f"llama.cpp could not compute {len(tokens)} tokens (status {status})")
    lib.llama_synchronize(context)


@contextmanager
def counted_buffers() -> Iterator[dict[str, int]]:
    """Bytes by kind ("kv", "compute", "output") of the buffers that llama.cpp makes meanwhile.

    Only its log tells them. Contexts that other threads make meanwhile are counted too.
    """
    kinds: dict[str, int] = {}
    _counting[id(kinds)] = kinds
    try:
        yield kinds
    finally:
        del _counting[id(kinds)]


def load_model(file: Path, **settings: object) -> Any:
    """A model. settings: fields of llama_model_params. Raises ModelError as `open_model` does."""
    check_header(file)
    lib = library()
    forget_errors()
    params = lib.llama_model_default_params()
    for name, value in settings.items():
        setattr(params, name, value)
    model = lib.llama_model_load_from_file(os.fsencode(file), params)
    if not model:
        raise ModelError(f"{file} cannot be loaded as a GGUF model ({last_errors()}); {_ADVICE}")
    return model


def chat_formatter(template: str, *, eos: str, bos: str) -> Callable[..., Any]:
    """A function of `messages` that renders a model's own (sandboxed) Jinja template.

    Raises Jinja's own errors if the template is invalid.
    """
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    formatter: Callable[..., Any] = Jinja2ChatFormatter(
        template=template, eos_token=eos, bos_token=bos
    )
    return formatter


_MOST_REPEATED = 1_000
"""Most repetitions in a schema. The converter writes one level of brackets for each, and llama.cpp
crashes on some ten thousand levels."""
_REPEATED = re.compile(
    r'"(?:min|max)(?:Length|Items)": (?P<count>\d+)|"pattern": "(?P<pattern>(?:[^"\\]|\\.)*)"'
)
_BRACES = re.compile(r"(?<=[{,])\d+(?=[,}])")


def grammar(schema: Mapping[str, Any]) -> bytes:
    """The GBNF grammar of a JSON schema. Raises InputError on one that cannot be followed."""
    try:
        return _grammar(json.dumps(schema))  # not sorted: the text's keys keep their order
    except Exception as exc:  # the converter asserts on what it does not support
        raise InputError(
            f"this JSON schema, of the fields {', '.join(schema)}, cannot be made into a grammar "
            f"({exc}); give a simpler one"
        ) from exc


@lru_cache(maxsize=64)
def _grammar(schema: str) -> bytes:
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    counts = [
        int(count)
        for found in _REPEATED.finditer(schema)
        for count in ([found["count"]] if found["count"] else _BRACES.findall(found["pattern"]))
    ]
    if max(counts, default=0) > _MOST_REPEATED:
        raise ValueError(f"at most {_MOST_REPEATED} repetitions are allowed")
    return str(json_schema_to_gbnf(schema)).encode("utf-8")


def build_info() -> str:
    """llama.cpp's own line about the build (SIMD, threads)."""
    lib = library()
    import llama_cpp

    flags = lib.llama_print_system_info().decode("utf-8", "replace")
    return f"llama-cpp-python {llama_cpp.__version__} ({flags.strip()})"


# -- what a model will take in memory --------------------------------------------------------------
# Resident memory on Linux x86-64, without a GPU: what is mapped and read, or written to.


def engine_bytes(file: Path, choice: Choice) -> dict[str, int]:
    """Predicted bytes of a GGUF model under a choice of n_ctx and prefix_bytes, by part.

    The parts are weights, tokenizer, kv, compute and prefixes. compute: as much of
    llama.cpp's buffer as a prompt of the whole window touches: twice the attention scores of a
    batch, and its feed-forward states. prefixes: an upper bound. Models take less if some layers
    keep no KV, or only a window of it. Raises ModelError if the header does not tell.
    """
    try:
        parts = _context_bytes(read_header(read_only(file)), choice)
    except ValueError as exc:
        raise ModelError(
            f"what {file} will take in memory cannot be told from its header ({exc}); check it "
            "with `edgemem models verify`, or load it without a memory limit"
        ) from exc
    return {"weights": file.stat().st_size, **parts}


def _context_bytes(header: Header, choice: Choice) -> dict[str, int]:
    """The parts beside the weights. Raises ValueError if the header lacks a value."""
    if "token_embd.weight" not in header.tensors:
        raise ValueError("it has no token_embd.weight")
    layers = _number(header, "block_count")
    heads = _number(header, "attention.head_count")
    width = _number(header, "embedding_length")
    kv_heads = _numbers(header, "attention.head_count_kv", heads)
    per_head = width // max(1, heads)
    keys = _number(header, "attention.key_length", per_head)
    values = _number(header, "attention.value_length", per_head)
    n_ctx = -(-choice.n_ctx // 256) * 256  # as llama.cpp rounds it
    all_kv_heads = sum(kv_heads) if len(kv_heads) == layers else layers * max(kv_heads)
    kv = all_kv_heads * (keys + values) * _F16 * n_ctx
    batch = min(N_BATCH, n_ctx)
    states = 3 * (_number(header, "feed_forward_length") + width)
    tokens = header.tensors["token_embd.weight"].shape[-1]
    merges = tokens if "tokenizer.ggml.merges" in header.values else 0
    return {
        "tokenizer": tokens * _TOKEN_BYTES + merges * _MERGE_BYTES,
        "kv": kv,
        "compute": batch * _F32 * (2 * heads * n_ctx + states) + tokens * _F32,
        "prefixes": min(choice.prefix_bytes, STAGES * kv),
    }


def _number(header: Header, name: str, default: int | None = None) -> int:
    return max(_numbers(header, name, default))


def _numbers(header: Header, name: str, default: int | None = None) -> tuple[int, ...]:
    """A value under the architecture's name: one number, or one per layer. Raises ValueError."""
    value = header.get(f"{header.get('general.architecture')}.{name}", default)
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers or not all(type(n) is int and 0 <= n < 2**31 for n in numbers):
        raise ValueError(f"its {name} is {value!r}")
    return numbers


# -- what a file's tensors hold --------------------------------------------------------------------
# ggml's own functions unpack them: the types that llama.cpp runs are the types that are read here.


class _Traits(ctypes.Structure):
    """The first fields of ggml_type_traits, in ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


class TensorType(NamedTuple):
    """How ggml lays out a type: blocks of `items` weights in `size` bytes."""

    name: str
    items: int
    size: int
    to_float: Any  # None: float32 already, or without a float form

    def unpack(self, packed: NDArray[np.uint8], out: FloatArray) -> None:
        """Unpack whole blocks to float32. out: as many weights as the blocks hold.

        Raises ValueError if out is not C-contiguous, except for F32, which is only copied.
        """
        if self.name == "F32":
            out[...] = packed.view(np.float32).reshape(out.shape)
        elif out.flags.c_contiguous:
            self.to_float(packed.ctypes.data, out.ctypes.data, out.size)
        else:
            raise ValueError("out must be C-contiguous")


@lru_cache
def tensor_type(number: int) -> TensorType | None:
    """ggml's type of that number; None if the installed llama.cpp does not know it."""
    lib = library()  # which stores ggml's log, too
    from llama_cpp._ggml import libggml

    traits_of, name_of = libggml["ggml_get_type_traits"], libggml["ggml_type_name"]
    traits_of.restype, traits_of.argtypes = ctypes.POINTER(_Traits), [ctypes.c_int]
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_int]
    if not 0 <= number < lib.GGML_TYPE_COUNT:  # ggml reads beyond its table
        return None
    traits = traits_of(number).contents
    # The struct is internal to llama.cpp. If its layout changed, its first fields would be wrong.
    if traits.type_name != name_of(number) or traits.blck_size < 1:
        return None
    name = traits.type_name.decode().upper()
    return TensorType(name, traits.blck_size, traits.type_size, traits.to_float or None)


def wrong_tensor(tensor: Tensor, size: int) -> str:
    """What is wrong with a tensor in a file of `size` bytes; empty if nothing is."""
    kind = tensor_type(tensor.type)
    if kind is None:
        return f"is of type number {tensor.type}, which the installed llama.cpp does not know"
    if tensor.shape[0] % kind.items:
        return f"has rows of {tensor.shape[0]}, and {kind.name} has blocks of {kind.items}"
    end = tensor.start + prod(tensor.shape) // kind.items * kind.size
    return f"ends at byte {end}, the file at {size}" if end > size else ""


class Tensors:
    """An open GGUF file. settings: its scalars and strings by key. shapes: (rows, columns) by name;
    a vector has one row. The file is mapped, not read; if llama.cpp has it open too, they share the
    pages. Several threads may read."""

    def __init__(self, path: Path) -> None:
        check_header(path)
        header, data = open_header(path, _ADVICE)
        self.path = path
        self.settings: dict[str, int | float | str | bool] = {
            key: entry.value
            for key, entry in header.values.items()
            if isinstance(entry.value, int | float | str)
        }
        self._data = np.frombuffer(data, np.uint8)
        self._tensors = header.tensors
        self._types = {name: _unpackable(path, t, len(data)) for name, t in header.tensors.items()}
        self.shapes = {n: (prod(t.shape[1:]), t.shape[0]) for n, t in header.tensors.items()}

    def read(self, name: str, out: FloatArray, start: int = 0) -> None:
        """Unpack rows of a tensor, from `start` on, as many as fit into out (rows, columns).

        Raises KeyError on an unknown name, ValueError on rows or columns that the tensor does not
        have.
        """
        shape, end = self.shapes[name], start + len(out)
        if out.shape[1] != shape[1] or start < 0 or end > shape[0]:
            raise ValueError(f"{name} has shape {shape}, not rows {start} on of {out.shape}")
        packed = self._data[self._begin(name, start) : self._begin(name, end)]
        self._types[name].unpack(packed, out)

    def _begin(self, name: str, row: int) -> int:
        """The byte of the file at which a row begins."""
        tensor, kind = self._tensors[name], self._types[name]
        return tensor.start + row * (tensor.shape[0] // kind.items * kind.size)


def _unpackable(path: Path, tensor: Tensor, size: int) -> TensorType:
    """A tensor's type. size: the file's bytes. Raises ModelError if it cannot be unpacked."""
    kind, wrong = tensor_type(tensor.type), wrong_tensor(tensor, size)
    if kind is None or wrong:
        raise ModelError(f"{path} cannot be read: its tensor {tensor.name} {wrong}; {_ADVICE}")
    if kind.name != "F32" and kind.to_float is None:
        raise ModelError(
            f"{path}: its tensor {tensor.name} is of type {kind.name}, which has no float form; "
            "use a GGUF of another quantisation"
        )
    return kind
