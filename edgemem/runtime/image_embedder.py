"""Images and texts to unit vectors of one space, by a CLIP or SigLIP pair in ONNX.

None is shipped. Its folder is laid out as Hugging Face's exports are: `vision_model.onnx` and
`text_model.onnx` (also in a folder `onnx`), `tokenizer.json`, `preprocessor_config.json` and
`config.json`. Knows no image files: pixels come in the size that it asks for.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError, ModelNotFound
from edgemem.inputs import utf8
from edgemem.runtime import models
from edgemem.runtime.embedder import SESSION_BYTES, open_session, read_tokenizer, unit

__all__ = ["ImageEmbedder", "image_embedder_bytes"]

_VISION, _TEXT = "vision_model.onnx", "text_model.onnx"
_OUTPUTS = "image_embeds", "text_embeds", "pooler_output"  # CLIP's two, and SigLIP's


class ImageEmbedder:
    """A loaded pair. Safe to use from several threads at once.

    model_id: the folder's name, `@` and 12 hex digits of what both files are. dim: length of a
    vector. side: an image is (side, side) pixels; crop: cut to a square first (CLIP), or pressed
    into one (SigLIP).
    """

    def __init__(self, folder: Path, n_threads: int | None) -> None:
        vision, text = _file(folder, _VISION), _file(folder, _TEXT)
        self._vision, self._text = open_session(vision, n_threads), open_session(text, n_threads)
        self._image_out, self._text_out = _output(vision, self._vision), _output(text, self._text)
        self._tokenizer = read_tokenizer(_file(folder, "tokenizer.json"))
        given, config = _json(folder, "preprocessor_config.json"), _json(folder, "config.json")
        size = given.get("crop_size" if given.get("do_center_crop") else "size") or {}
        try:
            size = size if isinstance(size, dict) else {"height": size}
            self.side = int(size.get("height") or size["shortest_edge"])
            self.crop = bool(given.get("do_center_crop", False))
            self._mean = np.array(given.get("image_mean", [0.5] * 3), np.float32).reshape(3, 1, 1)
            self._std = np.array(given.get("image_std", [0.5] * 3), np.float32).reshape(3, 1, 1)
            # SigLIP has learned from texts that are padded to their full length.
            padded = str(config.get("model_type", "")).startswith("siglip")
            self._most = int(config.get("text_config", {}).get("max_position_embeddings", 77))
            if self.side < 1 or self._most < 2:
                raise ValueError(f"a side of {self.side} pixels, {self._most} tokens")
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ModelError(
                f"the preprocessor_config.json or config.json of {folder} does not say how an "
                f"image or a text is given to its model ({exc!r}); export the model again"
            ) from exc
        self._tokenizer.enable_truncation(self._most)
        if padded:
            self._tokenizer.enable_padding(length=self._most, pad_id=_pad(config))
        digests = models.sha256_of(vision) + models.sha256_of(text)
        self.model_id = f"{folder.name}@{hashlib.sha256(digests.encode()).hexdigest()[:12]}"
        self.dim = len(self.embed(np.zeros((self.side, self.side, 3), np.uint8)))
        if len(self.embed_text("a photo")) != self.dim:
            raise ModelError(
                f"the two models of {folder} are no pair: their vectors differ in length"
            )

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, n_threads: int | None = None) -> ImageEmbedder:
        """n_threads: None means one per usable core, four at most.

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
        return self._run(self._vision, self._image_out, values)

    def embed_text(self, text: str) -> NDArray[np.float32]:
        """The vector of a text that describes an image, (dim,) of length 1; a long one is cut.

        Raises InputError on broken characters, ModelError if the model fails.
        """
        utf8(text)
        encoding = self._tokenizer.encode(text)
        values = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        wanted = {i.name for i in self._text.get_inputs()}
        rows = {name: np.array([row], np.int64) for name, row in values.items() if name in wanted}
        return self._run(self._text, self._text_out, rows)

    def _run(self, session: Any, output: str, values: dict[str, Any]) -> NDArray[np.float32]:
        try:
            (found,) = session.run([output], values)
            vector: NDArray[np.float32] = unit(np.asarray(found, np.float32).reshape(-1))
        except Exception as exc:  # onnxruntime's errors share no base class of their own
            raise ModelError(f"the image embedder failed: {exc}") from exc
        if not np.isfinite(vector).all():
            raise ModelError("the image embedder gave values that are no numbers; get it again")
        return vector


def image_embedder_bytes(folder: str | os.PathLike[str]) -> int:
    """Of a loaded pair, about. Raises ModelNotFound if a file is missing."""
    files = [_file(Path(folder), name) for name in (_VISION, _TEXT)]
    return sum(file.stat().st_size + SESSION_BYTES for file in files)


def _file(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / "onnx" / name):
        if file.is_file():
            return file
    raise ModelNotFound(
        f"there is no {name} in {folder}; give the folder of a CLIP or SigLIP model in ONNX, with "
        "vision_model.onnx, text_model.onnx, tokenizer.json and preprocessor_config.json"
    )


def _output(file: Path, session: Any) -> str:
    names = [o.name for o in session.get_outputs()]
    found = next((name for name in _OUTPUTS if name in names), None)
    if found is None:
        raise ModelError(
            f"{file} gives {', '.join(names)}; a CLIP or SigLIP model gives one of "
            f"{', '.join(_OUTPUTS)}"
        )
    return found


def _json(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    try:
        found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as exc:
        raise ModelError(f"{file} cannot be read ({exc}); get the model again") from exc
    if not isinstance(found, dict):
        raise ModelError(f"{file} is no JSON object; get the model again")
    return found


def _pad(config: dict[str, Any]) -> int:
    return int(config.get("text_config", {}).get("pad_token_id", 1))
