"""Texts, their tokens and images to unit vectors; also text to tokens by another model's tokenizer.

The only importer of onnxruntime and tokenizers. Knows no memories and no image files: the caller
gives pixels in the size that the model takes.

A text's vector does not depend on the rest of its batch. In a model with dynamically quantised
activations a batch shares a scale; such a model is run one text at a time.

Tokens get a vector each for late interaction (ColBERT): by answerai-colbert-small-v1 with an expert
that learned conversations, and the projection that ships with it (edgemem/data/tokens.npz, set by
`python -m bench.fit_retrieval`). A vector is projected to fewer dimensions, normalised, and rounded
to int8 with one step for all. So the inner product of two vectors is exact in integers, and `step`²
times it is near to their cosine.

No model for images is shipped. The folder of a CLIP or SigLIP model has the layout of Hugging
Face's exports: `vision_model.onnx` (or `onnx/vision_model.onnx`) and `preprocessor_config.json`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError, ModelNotFound
from edgemem.inputs import utf8
from edgemem.kernels import one_blas_thread
from edgemem.runtime import models
from edgemem.runtime.machine import cores, trim_heap
from edgemem.runtime.onnxfile import expert_file, read_expert, rewritten

__all__ = ["MAX_TOKENS", "QUERY_MARK", "QUERY_TOKENS", "TEXT_MARK", "TOKEN_MODEL"]
__all__ += ["WORKSPACE_BYTES", "Embedder", "ImageEmbedder", "TokenEmbedder", "Tokens"]
__all__ += ["bundled_tokenizer", "embedder_bytes", "file_tokenizer", "image_embedder_bytes"]
__all__ += ["open_session", "token_embedder_bytes", "unit"]

DEFAULT_TOKENIZER = "minilm-l6-v2-tokenizer"
MAX_TOKENS = 256  # what all-MiniLM-L6-v2 was trained for; its positions would reach 512
OVERLAP_TOKENS = 32
BATCH_TOKENS = 256  # padded tokens of a batch; larger batches take more memory and as much time
WORKSPACE_BYTES = 27_000_000  # what a batch and its text's tokens take, with no block kept
_TRIM_TOKENS = 4096  # from this many tokens in a call, returning freed memory is worth its time
_MAX_THREADS = 4
# onnxruntime unpacks the int8 matrices, half of MiniLM, to float32. The other half, the vocabulary,
# stays in the mapped file (see onnxfile.py). _SESSION_BYTES: onnxruntime's own code and threads.
_UNPACKED, _SESSION_BYTES = 2, 20_000_000
_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
_PROBES = ("Yes.", "She moved to Oslo in May 2023 and works 3 days a week at the harbour's café!")

TOKEN_MODEL = "colbert-small-v1-int8"
QUERY_MARK, TEXT_MARK = 1, 2  # [unused0] and [unused1], which ColBERT calls [Q] and [D]
QUERY_CHUNKS = 8  # of a query that are used
QUERY_TOKENS = 64  # of a query that are used; using all of a pasted page is no better
_IMAGE_MODEL = "vision_model.onnx"
_IMAGE_OUTPUTS = "image_embeds", "pooler_output"  # CLIP's, and SigLIP's

Vectors = NDArray[np.float32]
Tokens = NDArray[np.int8]
"""(t, d) int8, the vectors of t tokens."""


class Embedder:
    """A loaded embedding model. Safe to use from several threads at once.

    model_id: `name@` and 12 hex digits of the model file's sha256, to be stored beside vectors.
    dim: length of a vector. max_tokens: tokens seen at once, [CLS] and [SEP] included; a longer
    text is split, never cut.
    """

    def __init__(self, session: Any, tokenizer: Any, *, model_id: str) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._inputs = [i.name for i in session.get_inputs()]
        self._outputs = [o.name for o in session.get_outputs()]
        marks = tokenizer.encode("").ids
        if len(marks) != 2:
            raise ModelError(
                f"The tokenizer of {model_id} does not put one token before and one after a text, "
                "as BERT's does. Use a sentence-embedding model of the BERT family."
            )
        self._cls, self._sep = marks
        self.model_id = model_id
        self.dim = int(session.get_outputs()[0].shape[-1])
        self.max_tokens = MAX_TOKENS
        self._batch_tokens = BATCH_TOKENS if self._batches_agree() else 1

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] = models.DEFAULT_EMBEDDER,
        *,
        n_threads: int | None = None,
        expert: bytes | None = None,
    ) -> Embedder:
        """Load a sentence-embedding model.

        name: a name of the manifest, or the path of an ONNX file with BERT's inputs and an output
        (batch, tokens, dim); the tokenizer is then the `tokenizer.json` beside it, or else
        MiniLM's. n_threads: None means one per usable core, four at most. expert: the bytes of an
        expert's file (onnxfile.py); None takes the one that ships for a model of the manifest.
        Raises ModelNotFound if a file is missing, ModelError if one is damaged or does not fit,
        ValueError if n_threads < 1.
        """
        if n_threads is not None and n_threads < 1:
            raise ValueError(f"n_threads is {n_threads}; give 1 or more, or None to choose")
        known = models.manifest().get(os.fspath(name))
        if known is not None:
            model_file = models.verified_file(known.name)
            model_id = f"{known.name}@{known.sha256[:12]}"
            tokenizer = bundled_tokenizer(known.tokenizer or DEFAULT_TOKENIZER)
            if expert is None and known.expert:
                expert = expert_file(known.expert)
        else:
            model_file = models.find(name)
            model_id = f"{model_file.stem}@{models.sha256_of(model_file)[:12]}"
            own = model_file.parent / "tokenizer.json"
            tokenizer = _read_tokenizer(own) if own.is_file() else bundled_tokenizer()
        if expert is not None:
            model_id += f"+{hashlib.sha256(expert).hexdigest()[:8]}"
        session = _load_session(model_file, n_threads, expert)
        trim_heap()
        return cls(session, tokenizer, model_id=model_id)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector per text: (n, dim) float32, of length 1.

        A text longer than `max_tokens` gets the mean of its chunks' vectors, normalised. Raises
        InputError on broken characters, TypeError on anything but strings, ModelError if the
        model fails.
        """
        out = np.empty((len(texts), self.dim), np.float32)
        for row, chunks in enumerate(self.embed_chunks(texts)):
            out[row] = _mean(chunks)
        return out

    def embed_query(self, text: str) -> Vectors:
        """The vector of one text: (dim,) float32, of length 1. Errors as `embed`.

        Of a text of more than QUERY_CHUNKS chunks only the first and the last are used.
        """
        windows, half = self._windows(text), QUERY_CHUNKS // 2
        if len(windows) > QUERY_CHUNKS:  # what is asked stands before or after a pasted text
            windows = [*windows[:half], *windows[-half:]]
        return _mean(self._embed_windows([windows])[0])

    def embed_chunks(self, texts: Sequence[str]) -> list[Vectors]:
        """The vectors of each text's chunks, in order: a list of (c, dim) float32, c >= 1.

        Each chunk holds at most `max_tokens`; together they hold every token of the text, and
        neighbours share up to 32. Errors as `embed`. Time grows with length.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of strings")
        return self._embed_windows([self._windows(text) for text in texts])

    def _embed_windows(self, windows: list[list[list[int]]]) -> list[Vectors]:
        """The vectors of each text's chunks. windows: by text, the token ids of each chunk."""
        flat = [ids for per_text in windows for ids in per_text]
        vectors = np.empty((len(flat), self.dim), np.float32)
        for rows in _batches([len(ids) for ids in flat], self._batch_tokens):
            vectors[rows] = self._run([flat[row] for row in rows])
        if sum(map(len, flat)) >= _TRIM_TOKENS:
            trim_heap()
        ends = np.cumsum([len(per_text) for per_text in windows])
        return [
            vectors[end - len(per_text) : end]
            for end, per_text in zip(ends.tolist(), windows, strict=True)
        ]

    def embed_tokens(self, text: str, mark: int) -> Iterator[tuple[list[int], Vectors]]:
        """For each chunk of a text, its tokens' ids and their unit vectors, (t, dim) float32.

        mark: the id of a token that is inserted after [CLS]. Chunks and errors as `embed_chunks`.
        Each chunk is run alone.
        """
        for cls, *ids in self._windows(text):
            marked = [cls, mark, *ids]
            row = np.array([marked], np.int64)
            yield marked, self._require_finite(unit(self._hidden_states(row, np.ones_like(row))[0]))

    def token_ids(self, text: str) -> list[int]:
        """The ids of a text's tokens, without [CLS] and [SEP]. Errors as `embed`."""
        ids: list[int] = self._encode(text).ids
        return ids

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without [CLS] and [SEP]. Errors as `embed`."""
        return len(self.token_ids(text))

    def _encode(self, text: str) -> Any:
        if not isinstance(text, str):
            raise TypeError(f"a text must be a string, not {type(text).__name__}")
        utf8(text)
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _windows(self, text: str) -> list[list[int]]:
        """The token ids of each chunk of a text, [CLS] and [SEP] added."""
        encoding = self._encode(text)
        ids, room = encoding.ids, self.max_tokens - 2
        if len(ids) <= room:
            return [[self._cls, *ids, self._sep]]
        breaks = _breaks(text, encoding)
        spans = split_windows(breaks, room, OVERLAP_TOKENS)
        return [[self._cls, *ids[start:end], self._sep] for start, end in spans]

    def _run(self, batch: list[list[int]]) -> Vectors:
        """Unit vectors (n, dim) of n token sequences: mean over their tokens, normalised."""
        ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
        mask = np.zeros_like(ids)
        for row, sequence in enumerate(batch):
            ids[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = 1
        hidden = self._hidden_states(ids, mask)
        # A sequence is summed without its padding, so that padding cannot change the rounding.
        pooled = np.stack([hidden[i, : len(s)].mean(axis=0) for i, s in enumerate(batch)])
        return self._require_finite(unit(pooled.astype(np.float32, copy=False)))

    def _hidden_states(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        """(n, t, dim), the last hidden states of n sequences of t tokens. Raises ModelError."""
        values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        try:
            made: list[Vectors] = self._session.run(
                self._outputs[:1], {n: values[n] for n in self._inputs}
            )
        except Exception as exc:  # onnxruntime's errors share no base class of their own
            raise ModelError(f"The embedding model {self.model_id} failed: {exc}") from exc
        return made[0]

    def _require_finite(self, vectors: Vectors) -> Vectors:
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"The embedding model {self.model_id} gave values that are no numbers. Its file is "
                "damaged or not a sentence-embedding model: `edgemem models verify` checks it."
            )
        return vectors

    def _batches_agree(self) -> bool:
        """Whether a text keeps its vector when it is padded and run beside another."""
        batch = [self._windows(text)[0] for text in _PROBES]
        together = self._run(batch)
        alone = np.concatenate([self._run([ids]) for ids in batch])
        return bool(np.abs(together - alone).max() < 1e-5)


def split_windows(breaks: Sequence[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Where to split a sequence of tokens: [start, end) of each window, in order.

    breaks: (n,) how well a window may end just before each token: 2 after a sentence, 1 after a
    word, 0 inside a word. room: tokens that a window holds, at least 2. overlap: tokens that
    neighbours may share, less than half of room. A window ends at the best break of its second
    half, the last of equals. Every token is in a window, and no window is within another.
    """
    n, start, spans = len(breaks), 0, []
    while start + room < n:
        places = range(start + room, start + room // 2, -1)
        end = max(places, key=lambda i: breaks[i])  # the first of equals, so the last place
        spans.append((start, end))
        shared = range(max(end - overlap, start + 1), end)
        start = next((i for i in shared if breaks[i]), end)
    spans.append((start, n))
    return spans


def _mean(chunks: Vectors) -> Vectors:
    """The vector of a text of these chunks."""
    return chunks[0] if len(chunks) == 1 else unit(chunks.mean(axis=0))


def _breaks(text: str, encoding: Any) -> list[int]:
    """For `split_windows`: how well a window may end before each token of a text."""
    offsets, words = encoding.offsets, encoding.word_ids
    out = [2]
    for i in range(1, len(offsets)):
        end, start = offsets[i - 1][1], offsets[i][0]
        gap, last = text[end:start], text[max(end - 1, 0) : end]
        if "\n" in gap or last in "。！？" or (gap and last in ".!?…"):
            out.append(2)
        else:
            out.append(0 if words[i] == words[i - 1] else 1)
    return out


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yields the positions of sequences for one batch, at most batch_tokens when padded.

    The sequences of a batch have similar lengths. One longer than batch_tokens is a batch alone.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[position] > batch_tokens:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def unit(x: Vectors) -> Vectors:
    """Vectors of length 1 along the last axis; a vector of zeros stays as it is."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    unit: Vectors = x / np.maximum(norm, np.float32(1e-12))
    return unit


@cache
def bundled_tokenizer(name: str = DEFAULT_TOKENIZER) -> Any:
    """A tokenizer of the manifest: a `tokenizers.Tokenizer` that neither truncates nor pads.

    Cached for the process, because it takes 12 MB. Raises as `Embedder.load`.
    """
    return _read_tokenizer(models.verified_file(name))


def open_session(file: Path, n_threads: int | None = None, expert: bytes | None = None) -> Any:
    """An onnxruntime session of a model's file, with an expert (if given) added to its weights.

    n_threads: None means one per usable core, four at most. Raises ModelNotFound, ModelError.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # since 1.29, each session is reported otherwise
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # for Windows, and if the app imported it before
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads or min(cores(), _MAX_THREADS)
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # Threads that spin while they wait slow down the other programs of a busy machine.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # errors are raised; do not print them as well

    def session(model: bytes | None) -> Any:
        """model: rewritten; None loads the file as it is."""
        if model is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(file.parent)
            )
            # Without this, every run would dequantise every matrix again.
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        made = onnxruntime.InferenceSession(
            model or str(file), options, providers=["CPUExecutionProvider"]
        )
        made._model_bytes = None  # kept only to make the session again with other providers
        return made

    try:
        if expert is not None:
            with one_blas_thread():
                model = rewritten(file, read_expert(expert))
            return session(model)
        with suppress(Exception):  # the plain load below reports what is wrong
            return session(rewritten(file))
        return session(None)
    except Exception as exc:  # onnxruntime's errors share no base class of their own
        if not file.is_file():
            raise ModelNotFound(f"{file} has gone. Install or place the model again.") from exc
        raise ModelError(
            f"{file} is not a model that onnxruntime can load ({exc}). It is damaged or of another "
            "kind: get it again, or give an ONNX file."
        ) from exc


def _load_session(file: Path, n_threads: int | None, expert: bytes | None) -> Any:
    session = open_session(file, n_threads, expert)
    inputs = {i.name for i in session.get_inputs()}
    shape = session.get_outputs()[0].shape
    if not (
        "input_ids" in inputs
        and inputs <= _INPUTS
        and len(shape) == 3
        and isinstance(shape[-1], int)
    ):
        raise ModelError(
            f"{file} is not a sentence-embedding model: it takes {', '.join(sorted(inputs))} and "
            f"its first output has the shape {shape}. Allowed: {', '.join(sorted(_INPUTS))}, and "
            "an output (batch, tokens, dim)."
        )
    return session


def embedder_bytes(file: Path) -> int:
    """Predicted memory of an int8 embedder whose file is half vocabulary, as MiniLM's is."""
    return file.stat().st_size * _UNPACKED + _SESSION_BYTES


# -- tokens as another model counts them ---------------------------------------------------------


def file_tokenizer(
    file: str | os.PathLike[str],
) -> Callable[[str], NDArray[np.int64]]:
    """A function from a text to its tokens by a tokenizer.json, as (n, 2) characters [start, end).

    Special tokens are not added. Raises ModelNotFound or ModelError. The function raises InputError
    on half of a surrogate pair.
    """
    tokenizer = _read_tokenizer(file)

    def offsets(text: str) -> NDArray[np.int64]:
        utf8(text)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.offsets, np.int64).reshape(-1, 2)

    return offsets


def _read_tokenizer(file: str | os.PathLike[str]) -> Any:
    """A `tokenizers.Tokenizer` that neither truncates nor pads. Raises as `file_tokenizer`."""
    from tokenizers import Tokenizer

    path = Path(file)
    if not path.is_file():
        raise ModelNotFound(f"There is no tokenizer file {path}. Give a model's tokenizer.json.")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # tokenizers raises plain Exception
        raise ModelError(
            f"{path} is not a tokenizer ({exc}). Replace it by the tokenizer.json that belongs to "
            "the model."
        ) from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


# -- a vector for each token ---------------------------------------------------------------------


class TokenEmbedder:
    """A loaded model. Safe to use from several threads at once.

    model_id: identifies the model's file and the projection; to be stored beside vectors. dim:
    length of a vector. step: the factor from a vector's integers to its values.
    """

    def __init__(self, embedder: Embedder, saved: bytes) -> None:
        """saved: the bytes of a projection's file."""
        numbers = read_expert(saved)
        self._projection, self.step = numbers["projection"], float(numbers["step"])
        self.dim = self._projection.shape[1]
        self.model_id = f"{embedder.model_id}+{hashlib.sha256(saved).hexdigest()[:12]}"
        self._embedder = embedder
        self._punctuation = embedder.token_ids(string.punctuation)

    @classmethod
    def load(cls, *, n_threads: int | None = None) -> TokenEmbedder:
        """Errors as `Embedder.load`."""
        return cls(Embedder.load(TOKEN_MODEL, n_threads=n_threads), expert_file("tokens"))

    def embed(self, text: str) -> Tokens:
        """The vectors of a stored text's tokens, without punctuation. Errors as `Embedder`'s.

        Time grows with length.
        """
        return self._embed(text, TEXT_MARK)

    def embed_query(self, text: str) -> Tokens:
        """The vectors of a query, at most 64. ColBERT marks texts and queries differently."""
        return self._embed(text, QUERY_MARK, QUERY_TOKENS)[:QUERY_TOKENS]

    def _embed(self, text: str, mark: int, enough: float = math.inf) -> Tokens:
        """enough: how many vectors are wanted; at most a chunk more are made."""
        kept: list[Vectors] = []
        for ids, vectors in self._embedder.embed_tokens(text, mark):
            kept.append(vectors[np.isin(ids, self._punctuation, invert=True)])
            if sum(map(len, kept)) >= enough:
                break
        projected = unit(np.concatenate(kept) @ self._projection)
        tokens: Tokens = np.clip(np.rint(projected / self.step), -127, 127).astype(np.int8)
        return tokens


def token_embedder_bytes(file: Path) -> int:
    """Predicted memory of a loaded model; unlike the embedder's, its int8 matrices stay int8."""
    return file.stat().st_size + _SESSION_BYTES


# -- images --------------------------------------------------------------------------------------


class ImageEmbedder:
    """A loaded model. Safe to use from several threads at once.

    model_id: the folder's name, `@` and 12 hex digits of the model file's sha256. dim: length of a
    vector. side: an image must have (side, side) pixels. crop: True if the caller must crop an
    image to a square first (CLIP), False if it must be squeezed into one (SigLIP).
    """

    def __init__(self, folder: Path, n_threads: int | None) -> None:
        file = _image_model(folder)
        self._session = open_session(file, n_threads)
        names = [o.name for o in self._session.get_outputs()]
        self._output = next((name for name in _IMAGE_OUTPUTS if name in names), "")
        if not self._output:
            raise ModelError(
                f"{file} gives {', '.join(names)}; a CLIP or SigLIP model gives one of "
                f"{', '.join(_IMAGE_OUTPUTS)}"
            )
        given = _read_json(folder / "preprocessor_config.json")
        size = given.get("crop_size" if given.get("do_center_crop") else "size") or {}
        try:
            size = size if isinstance(size, dict) else {"height": size}
            self.side = int(size.get("height") or size["shortest_edge"])
            self.crop = bool(given.get("do_center_crop", False))
            self._mean = np.array(given.get("image_mean", [0.5] * 3), np.float32).reshape(3, 1, 1)
            self._std = np.array(given.get("image_std", [0.5] * 3), np.float32).reshape(3, 1, 1)
            if self.side < 1:
                raise ValueError(f"a side of {self.side} pixels")
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ModelError(
                f"the preprocessor_config.json of {folder} does not say how an image is given to "
                f"its model ({exc!r}); export the model again"
            ) from exc
        self.model_id = f"{folder.name}@{models.sha256_of(file)[:12]}"
        self.dim = len(self.embed(np.zeros((self.side, self.side, 3), np.uint8)))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, n_threads: int | None = None) -> ImageEmbedder:
        """Load the model in a folder. n_threads: None means one per usable core, four at most.

        Raises ModelNotFound if a file is missing, ModelError if one is damaged or no such model.
        """
        return cls(Path(folder), n_threads)

    def embed(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The vector of an image, (dim,) of length 1. pixels: (side, side, 3) RGB.

        Raises ValueError on another shape, ModelError if the model fails.
        """
        if pixels.shape != (self.side, self.side, 3):
            raise ValueError(f"pixels are {pixels.shape}; give ({self.side}, {self.side}, 3)")
        scaled = pixels.transpose(2, 0, 1).astype(np.float32) / 255
        values = {"pixel_values": ((scaled - self._mean) / self._std)[None]}
        try:
            (found,) = self._session.run([self._output], values)
            vector: NDArray[np.float32] = unit(np.asarray(found, np.float32).reshape(-1))
        except Exception as exc:  # onnxruntime's errors share no base class of their own
            raise ModelError(f"the image embedder failed: {exc}") from exc
        if not np.isfinite(vector).all():
            raise ModelError("the image embedder gave values that are no numbers; get it again")
        return vector


def image_embedder_bytes(folder: str | os.PathLike[str]) -> int:
    """Predicted memory of a loaded model. Raises ModelNotFound if its file is missing."""
    return _image_model(Path(folder)).stat().st_size + _SESSION_BYTES


def _image_model(folder: Path) -> Path:
    for file in (folder / _IMAGE_MODEL, folder / "onnx" / _IMAGE_MODEL):
        if file.is_file():
            return file
    raise ModelNotFound(
        f"there is no {_IMAGE_MODEL} in {folder}; give the folder of a CLIP or SigLIP model in "
        "ONNX, with its preprocessor_config.json"
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as exc:
        raise ModelError(f"{file} cannot be read ({exc}); get the model again") from exc
    if not isinstance(found, dict):
        raise ModelError(f"{file} is no JSON object; get the model again")
    return found
