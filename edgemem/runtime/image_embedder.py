"""Images to unit vectors, by the image half of a CLIP or SigLIP model in ONNX.

No such model is shipped. A model's folder has the layout of Hugging Face's exports:
`vision_model.onnx` (or `onnx/vision_model.onnx`) and `preprocessor_config.json`. Knows no image
files: the caller gives pixels in the size that the model takes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.errors import ModelError, ModelNotFound
from edgemem.runtime import models
from edgemem.runtime.embedder import SESSION_BYTES, open_session, unit

__all__ = ["ImageEmbedder", "image_embedder_bytes"]

_MODEL = "vision_model.onnx"
_OUTPUTS = "image_embeds", "pooler_output"  # CLIP's, and SigLIP's


class ImageEmbedder:
    """A loaded model. Safe to use from several threads at once.

    model_id: the folder's name, `@` and 12 hex digits of the model file's sha256. dim: length of a
    vector. side: an image must have (side, side) pixels. crop: True if the caller must crop an
    image to a square first (CLIP), False if it must be squeezed into one (SigLIP).
    """

    def __init__(self, folder: Path, n_threads: int | None) -> None:
        file = _file(folder)
        self._session = open_session(file, n_threads)
        self._output = _output(file, self._session)
        given = _json(folder / "preprocessor_config.json")
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
    return _file(Path(folder)).stat().st_size + SESSION_BYTES


def _file(folder: Path) -> Path:
    for file in (folder / _MODEL, folder / "onnx" / _MODEL):
        if file.is_file():
            return file
    raise ModelNotFound(
        f"there is no {_MODEL} in {folder}; give the folder of a CLIP or SigLIP model in ONNX, "
        "with its preprocessor_config.json"
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


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as exc:
        raise ModelError(f"{file} cannot be read ({exc}); get the model again") from exc
    if not isinstance(found, dict):
        raise ModelError(f"{file} is no JSON object; get the model again")
    return found
