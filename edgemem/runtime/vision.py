"""Images in a prompt: llama.cpp's libmtmd, which computes a model's image tokens from pixels.

The second half of llama.py's wall: the only importer of llama_cpp.mtmd_cpp. A projector (the
`mmproj` file of a vision model) makes embeddings of an image, and libmtmd decodes them into the
engine's context. Their positions have two dimensions if the model uses M-RoPE, and attention is not
causal if the model's images require that. The markers around an image, such as `<img>`, are text
and become tokens; a large image is several parts with text between.

An image token is a negative number that contains the number of an image part. Such a number belongs
to the sha256 of one image's pixels and is never reused, so equal tokens mean equal images. libmtmd
aborts the process on some files. So a projector's header is checked (`check_projector`), and a
child process tries the projector out (machine.py), before it is loaded.
Knows no file format of images: it takes pixels.
Source: llama.cpp, tools/mtmd/mtmd.h, clip.cpp and mtmd-helper.cpp.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.budget import Choice
from edgemem.errors import InputError, ModelError
from edgemem.runtime import llama
from edgemem.runtime.gguf import Header, open_header
from edgemem.runtime.vocabulary import CLOSED, Pixels

__all__ = ["ImageTokens", "Vision", "check_projector", "engine_bytes", "part_of", "projector_type"]
__all__ += ["token_positions", "try_out", "width_of"]

KEPT_BYTES = 16_000_000  # of cached image embeddings: eight of 448 × 448 for a 0.5B model
MAX_SIDE = 8192  # pixels
_STATES = 9  # vectors of a patch in memory at once (bench/LOG.md, 2026-11-25)
_ANY_SIZE_PATCHES = 4 * 46**2  # for which libmtmd makes room if images may have any size
_SMALLEST_SIDE = 32  # pixels; an image of this size is not scaled down further to fit the window
_ADVICE = "give the mmproj-….gguf that was published with the model"
# Projectors whose image tokens depend on what precedes them: text, or the number of images.
_NOT_ALONE = ("deepseek4v", "hunyuanvl")
# The tensor whose dimension is the width of a projector's embeddings.
_WIDTH = {
    "gemma3": ("mm.input_projection.weight", 0),
    "idefics3": ("mm.model.fc.weight", 1),
    "internvl": ("mm.model.mlp.3.weight", 1),
    "lfm2": ("mm.2.weight", 1),
    "mlp": ("mm.2.weight", 1),
    "pixtral": ("mm.2.weight", 1),
    "qwen2.5vl_merger": ("mm.2.bias", 0),
    "qwen2vl_merger": ("mm.2.bias", 0),
}

# Values that a projector may lack, and their maxima. libmtmd lists the tilings of so many tiles.
_MAY_LACK = {"projector.scale_factor": 64, "preproc_max_tiles": 1024, "preproc_min_tiles": 1024}

# -- image tokens ----------------------------------------------------------------------------------
# A token is -(2³² · number of its part + 2¹⁶ · positions of the part + index within the part).


def _tokens_of(number: int, n_pos: int, n_tokens: int) -> list[int]:
    return [-(number << 32 | n_pos << 16 | i) for i in range(n_tokens)]


def part_of(token: int) -> int:
    """The number of the image part that a token belongs to; 0 for text."""
    return -token >> 32 if token < 0 else 0


def token_positions(token: int) -> int:
    """How many positions a token takes. The first token of an image part counts for all of it."""
    if token >= 0:
        return 1
    return 0 if -token & 0xFFFF else -token >> 16 & 0xFFFF


# -- one image -------------------------------------------------------------------------------------


@dataclass(slots=True, weakref_slot=True, eq=False)
class ImageTokens:
    """An image as a model reads it.

    tokens: of text and image, in order. first: the number of the first part. chunks: libmtmd's
    chunk of each part, with pixels until it is encoded. embeddings: (n_tokens, n_embd) float32 of
    each part; empty until they are computed.
    """

    tokens: list[int]
    first: int
    chunks: list[_Chunk]
    embeddings: list[NDArray[np.float32]] = field(default_factory=list)


class Vision:
    """A projector beside a loaded model. `see` may be called from any thread; the other methods
    only while the caller owns the engine."""

    def __init__(
        self, model: Any, context: Any, file: Path, *, n_threads: int, n_gpu_layers: int
    ) -> None:
        """Raises ModelError, naming the file and the cause."""
        self._lib, self._context, self._name = _library(), context, file.name
        self._width = int(llama.library().llama_model_n_embd_inp(model))
        header = check_projector(file, self._width)
        params = self._lib.mtmd_context_params_default()
        params.use_gpu = n_gpu_layers > 0
        params.n_threads = n_threads
        params.print_timings = False
        llama.forget_errors()
        self._handle = self._lib.mtmd_init_from_file(os.fsencode(file), model, params)
        if not self._handle:
            raise ModelError(
                f"{file} cannot be loaded as the projector of this model ({llama.last_errors()}); "
                f"{_ADVICE}"
            )
        self.path, self.bytes = file, file.stat().st_size - header.bytes
        self.mrope = bool(self._lib.mtmd_decode_use_mrope(self._handle))
        self.causal = not self._lib.mtmd_decode_use_non_causal(self._handle, None)
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, int], int] = {}  # of first parts, by `see`'s key
        self._last = 0
        self._pictures: weakref.WeakValueDictionary[int, ImageTokens] = (
            weakref.WeakValueDictionary()
        )
        self._kept: OrderedDict[tuple[str, int], ImageTokens] = OrderedDict()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is turned off, and why."""
        if self.causal:
            return ()
        return (
            f"An image of more than {llama.N_BATCH} tokens is refused: this model's image tokens "
            "see each other in both directions, so all of them are one batch.",
        )

    @property
    def kept_bytes(self) -> int:
        """The size of the cached images' embeddings."""
        chunks = [chunk for picture in list(self._kept.values()) for chunk in picture.chunks]
        return 4 * self._width * sum(chunk.n_tokens for chunk in chunks)

    def see(self, pixels: Pixels, most: int) -> ImageTokens:
        """An image and its tokens. The image is scaled down until these are at most `most`.

        The scaling stops at 32 pixels. pixels: (height, width, 3) uint8, 1 to 8192 on a side.
        Raises InputError on other pixels, ModelError if the model cannot read the image.
        """
        _check_pixels(pixels)
        digest = hashlib.sha256(f"{pixels.shape}".encode())
        digest.update(np.ascontiguousarray(pixels).data)
        key = digest.hexdigest(), most
        with self._lock:
            if self._handle is None:
                raise ModelError(CLOSED)
            picture = self._kept.pop(key, None) or self._read(pixels, key)
            self._kept[key] = picture
            while self.kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return picture

    def decode(self, token: int, position: int) -> None:
        """Decode the image part that begins with this token. Raises ModelError."""
        picture = self._pictures[part_of(token)]
        which = part_of(token) - picture.first
        values = self.embeddings(picture)[which]
        behind = ctypes.c_int32()
        status = self._lib.mtmd_helper_decode_image_chunk(
            self._handle,
            self._context,
            picture.chunks[which].pointer,
            values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            position,
            0,
            llama.N_BATCH,
            ctypes.byref(behind),
            self._lib.mtmd_helper_post_decode_callback(),
            None,
        )
        if status != 0:
            raise ModelError(
                f"llama.cpp failed to decode an image at position {position} (status {status}; "
                f"{llama.last_errors()})"
            )

    def embeddings(self, picture: ImageTokens) -> list[NDArray[np.float32]]:
        """The embeddings of each part of an image, (n_tokens, n_embd) float32."""
        if not picture.embeddings:
            self._encode(picture)
        return picture.embeddings

    def last_position(self, token: int, behind: int) -> int:
        """The position of the last token in the cache. behind: the position after it.

        With M-RoPE, all tokens of an image part lie at the first of its positions.
        """
        n_pos = -token >> 16 & 0xFFFF
        return behind - (n_pos if token < 0 and self.mrope else 1)

    def forget(self) -> None:
        """Drop the cached images and their numbers."""
        with self._lock:
            self._kept.clear()
            self._numbers.clear()

    def close(self) -> None:
        """Free the projector; a second time does nothing. The context must still be there."""
        with self._lock:
            handle, self._handle = self._handle, None
            self._kept.clear()
        if handle:
            self._lib.mtmd_free(handle)

    def _read(self, pixels: Pixels, key: tuple[str, int]) -> ImageTokens:
        texts_and_chunks = self._chunks(pixels)
        most = key[1]
        while (n := _count_tokens(texts_and_chunks)) > most and max(
            pixels.shape[:2]
        ) > _SMALLEST_SIDE:
            pixels = _smaller(pixels, max(0.5, 0.95 * math.sqrt(most / n)))
            texts_and_chunks = self._chunks(pixels)
        chunks = [chunk for chunk in texts_and_chunks if isinstance(chunk, _Chunk)]
        largest = max(chunk.n_tokens for chunk in chunks)
        if not self.causal and largest > llama.N_BATCH:
            raise ModelError(
                f"this image has {largest} tokens for {self._name}, whose image tokens see each "
                f"other in both directions; at most {llama.N_BATCH} are allowed: give a smaller "
                "image"
            )
        first = self._numbers.setdefault(key, self._last + 1)
        numbers = range(first, first + len(chunks))
        self._last = max(self._last, numbers[-1])
        tokens: list[int] = []
        number = iter(numbers)
        for found in texts_and_chunks:
            if isinstance(found, _Chunk):
                tokens += _tokens_of(next(number), found.n_pos, found.n_tokens)
            else:
                tokens += found
        picture = ImageTokens(tokens, first, chunks)
        self._pictures.update(dict.fromkeys(numbers, picture))
        return picture

    def _chunks(self, pixels: Pixels) -> list[_Chunk | list[int]]:
        """libmtmd's parts of an image, in order: lists of text tokens, and chunks to be encoded."""
        lib, (height, width, _) = self._lib, pixels.shape
        pixels = np.ascontiguousarray(pixels)
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap, chunks = lib.mtmd_bitmap_init(width, height, data), lib.mtmd_input_chunks_init()
        try:
            part = lib.mtmd_input_part(text=None, bitmap=bitmap)
            parts = (ctypes.POINTER(lib.mtmd_input_part) * 1)(ctypes.pointer(part))
            llama.forget_errors()
            status = lib.mtmd_tokenize_from_parts(self._handle, chunks, parts, 1, False)
            if status != 0:
                raise ModelError(
                    f"libmtmd cannot read an image of {width} × {height} pixels (status {status}; "
                    f"{llama.last_errors()}); give another image"
                )
            found = [self._chunk(chunks, i) for i in range(lib.mtmd_input_chunks_size(chunks))]
        finally:
            lib.mtmd_bitmap_free(bitmap)
            lib.mtmd_input_chunks_free(chunks)
        if any(token < 0 for part in found if isinstance(part, list) for token in part):
            raise ModelError(
                f"the model lacks a token that {self._name} writes around images, so the projector "
                f"is of another model; {_ADVICE}"
            )
        return found

    def _chunk(self, chunks: Any, i: int) -> _Chunk | list[int]:
        chunk, count = self._lib.mtmd_input_chunks_get(chunks, i), ctypes.c_size_t()
        if self._lib.mtmd_input_chunk_get_type(chunk) != self._lib.MTMD_INPUT_CHUNK_TYPE_TEXT:
            return _Chunk(self._lib, self._lib.mtmd_input_chunk_copy(chunk))
        tokens = self._lib.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        return [int(tokens[k]) for k in range(count.value)]

    def _encode(self, picture: ImageTokens) -> None:
        found = []
        for chunk in picture.chunks:
            llama.forget_errors()
            if self._lib.mtmd_encode_chunk(self._handle, chunk.pointer) != 0:
                raise ModelError(f"{self._name} cannot encode an image ({llama.last_errors()})")
            values = self._lib.mtmd_get_output_embd(self._handle)
            shape = chunk.n_tokens, self._width
            found.append(np.ctypeslib.as_array(values, shape=shape).copy())
        if not all(np.isfinite(values).all() for values in found):
            raise ModelError(
                f"{self._name} gave no numbers for an image; the file is damaged: {_ADVICE}"
            )
        placeholder = self._lib.mtmd_input_chunk_get_placeholder  # a chunk without its pixels
        picture.chunks = [_Chunk(self._lib, placeholder(c.pointer)) for c in picture.chunks]
        picture.embeddings = found


class _Chunk:
    """One of libmtmd's chunks of an image, which is freed with this object."""

    def __init__(self, lib: Any, pointer: Any) -> None:
        self.pointer = pointer
        self.n_tokens = int(lib.mtmd_input_chunk_get_n_tokens(pointer))
        self.n_pos = int(lib.mtmd_input_chunk_get_n_pos(pointer))
        weakref.finalize(self, lib.mtmd_input_chunk_free, pointer)


def _count_tokens(found: list[_Chunk | list[int]]) -> int:
    return sum(f.n_tokens if isinstance(f, _Chunk) else len(f) for f in found)


def _check_pixels(pixels: Pixels) -> None:
    shape, dtype = getattr(pixels, "shape", None), getattr(pixels, "dtype", None)
    allowed = shape is not None and len(shape) == 3 and shape[2] == 3
    if not allowed or dtype != np.uint8 or not 1 <= min(shape) <= max(shape) <= MAX_SIDE:  # type: ignore[arg-type]
        raise InputError(
            f"an image in a prompt is {type(pixels).__name__} of shape {shape} and type {dtype}; "
            f"it must be an array (height, width, 3) of uint8, 1 to {MAX_SIDE} pixels on a side"
        )


def _smaller(pixels: Pixels, factor: float) -> Pixels:
    """An image scaled down on both sides, each pixel a mean of those it covers."""
    for axis in (0, 1):
        size = pixels.shape[axis]
        cuts = np.linspace(0, size, max(1, round(size * factor)), endpoint=False).astype(np.intp)
        sums = np.add.reduceat(pixels.astype(np.uint32), cuts, axis=axis)
        shape = [-1 if i == axis else 1 for i in range(3)]
        counts = np.diff(np.append(cuts, size)).reshape(shape)
        pixels = ((sums + counts // 2) // counts).astype(np.uint8)
    return pixels


# -- a projector's file ----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _library() -> Any:
    """libmtmd's C functions, with its log kept instead of printed."""
    llama.library()
    from llama_cpp import mtmd_cpp

    mtmd_cpp.mtmd_helper_log_set(llama.log_callback(), ctypes.c_void_p(0))
    return mtmd_cpp


def check_projector(file: Path, width: int | None = None) -> Header:
    """The header of a projector's file. width: of the model's embeddings; None does not check it.

    Raises ModelError if the file is no projector, is damaged, belongs to another model, or cannot
    read images one by one.
    """
    header, data = open_header(file, _ADVICE)
    if wrong := _fault(header, len(data), width):
        raise ModelError(f"{file} cannot be a projector of this model: {wrong}; {_ADVICE}")
    if (kind := projector_type(header)) in _NOT_ALONE:
        raise ModelError(
            f"{file} cannot be a projector here: image tokens of a {kind} depend on what stands "
            "before them, so they cannot be computed one by one; use another vision model"
        )
    return header


def projector_type(header: Header) -> str:
    """libmtmd's name of a projector's form; empty if its file has none."""
    found = header.get("clip.projector_type") or header.get("clip.vision.projector_type")
    return str(found or "")


def width_of(model: Path) -> int:
    """The length of a language model's embeddings, from its file. Raises ModelError if missing."""
    advice = "give the GGUF of a language model"
    header, _ = open_header(model, advice)
    width = header.get(f"{header.get('general.architecture')}.embedding_length")
    if not isinstance(width, int):
        raise ModelError(f"{model} does not say how wide its embeddings are; {advice}")
    return width


def _fault(header: Header, size: int, width: int | None) -> str:
    """What is wrong with a projector's file of `size` bytes; empty if nothing is.

    Includes each size that would make libmtmd abort, divide by zero, or never end.
    """
    if (architecture := header.get("general.architecture")) != "clip":
        return f"its general.architecture is {architecture!r}, and must be 'clip'"
    if header.get("clip.has_vision_encoder") is not True:
        return "it has no vision encoder"
    names = ("embedding_length", "attention.head_count", "block_count", "patch_size", "image_size")
    for name in (*names, *_MAY_LACK):
        key = f"clip.vision.{name}"
        if name in _MAY_LACK and key not in header.values:
            continue
        found, most = header.get(key), _MAY_LACK.get(name, 1 << 16)
        least = int(name != "image_size")  # an image_size of 0 means any size
        if type(found) is not int or not least <= found <= most:
            return f"its {key} is {found!r}, and must be {least} to {most}"
    for tensor in header.tensors.values():
        if wrong := llama.wrong_tensor(tensor, size):
            return f"its tensor {tensor.name} {wrong}"
    name, axis = _WIDTH.get(projector_type(header), ("", 0))
    made = header.tensors[name].shape[axis : axis + 1] if name in header.tensors else None
    if made is not None and width is not None and made != (width,):
        own = made[0] if made else 0
        return f"it makes embeddings of {own} numbers, and the model's have {width}"
    return ""


def engine_bytes(file: Path, mmproj: Path | None, choice: Choice) -> dict[str, int]:
    """As `llama.engine_bytes`, with a part `projector` if there is one.

    It counts the projector's weights, which are not mapped, the buffers that encode an image, and
    the cached embeddings.
    """
    parts = llama.engine_bytes(file, choice)
    if mmproj is None:
        return parts
    header = check_projector(mmproj)
    image, patch, width = (
        header.get(f"clip.vision.{name}")
        for name in ("image_size", "patch_size", "embedding_length")
    )
    patches = (image // patch) ** 2
    if not image or "qwen" in projector_type(header):
        patches = max(patches, _ANY_SIZE_PATCHES)
    computed = _STATES * 4 * patches * width
    return {**parts, "projector": mmproj.stat().st_size + computed + KEPT_BYTES}


def try_out(model_file: str, mmproj: str, n_gpu_layers: int, extra_buffers: bool) -> None:
    """Load a model and its projector, encode and decode an image. Raises ModelError as `Vision`.

    Runs in a child of machine.py, which may crash.
    """
    model, context = llama.open_model(
        Path(model_file),
        n_ctx=512,
        n_threads=1,
        n_gpu_layers=n_gpu_layers,
        extra_buffers=extra_buffers,
    )
    vision = Vision(model, context, Path(mmproj), n_threads=2, n_gpu_layers=n_gpu_layers)
    picture, position = vision.see(np.zeros((48, 64, 3), np.uint8), 256), 0
    for token in picture.tokens:
        if token < 0 and token_positions(token):
            vision.decode(token, position)
            position += token_positions(token)
    llama.library().llama_synchronize(context)
