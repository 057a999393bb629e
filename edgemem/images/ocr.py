"""OCR: from pixels to the lines of text in them. The only importer of rapidocr.

Its models (PP-OCRv6 small: detection, direction and recognition, of Latin, Chinese and Japanese)
are in its wheel, so nothing is downloaded. Knows no memories.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgemem.config import require
from edgemem.errors import ModelError
from edgemem.results import ImageLine
from edgemem.runtime.embedder import open_session
from edgemem.runtime.machine import trim_heap

__all__ = ["LONGEST", "OCR_BYTES", "Ocr"]

LONGEST = 2000
"""Pixels of the longest side of a picture that is read: more take memory and read no better."""
OCR_BYTES = 370_000_000
"""Libraries, models and one picture of LONGEST while it is read (bench/LOG.md, 2026-11-25)."""
_DETECTED = 960  # pixels of the copy in which lines are found, as PaddleOCR does; then LONGEST

_FILES = {
    "Det": "PP-OCRv6_det_small.onnx",
    "Cls": "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "Rec": "PP-OCRv6_rec_small.onnx",
}

Points = NDArray[np.float64]


class Ocr:
    """Loaded models. Safe to use from several threads; one picture is read at a time."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._lock = threading.Lock()

    @classmethod
    def load(cls, *, n_threads: int | None = None) -> Ocr:
        """n_threads: None means one per usable core, four at most.

        Raises ConfigError where rapidocr is not installed, ModelError if a model is damaged.
        """
        require("ocr")
        import rapidocr
        from omegaconf import flag_override

        folder = Path(rapidocr.__file__).parent / "models"
        reader = rapidocr.RapidOCR(
            params={
                "Global.log_level": "critical",  # errors are raised
                "Det.limit_type": "max",
                "Det.limit_side_len": _DETECTED,
                "Rec.rec_batch_num": 1,  # else a wide line pads the others: more memory, no faster
            }
        )
        # Our sessions do not spin while they wait, and with a session rapidocr downloads no model.
        with flag_override(reader.cfg, "allow_objects", True):
            for part, name in _FILES.items():
                reader.cfg[part].session = open_session(folder / name, n_threads)
        return cls(reader)

    def read(self, pixels: NDArray[np.uint8]) -> list[ImageLine]:
        """The lines of a picture in reading order, their boxes in its pixels.

        pixels: (h, w, 3) RGB, upright, at most LONGEST a side. Texts side by side on one height are
        one line: a receipt's price belongs to its article. Raises ValueError on another shape,
        ModelError if a model fails.
        """
        if pixels.ndim != 3 or pixels.shape[2] != 3 or max(pixels.shape) > LONGEST:
            raise ValueError(f"pixels are {pixels.shape}; give (h, w, 3), at most {LONGEST} a side")
        with self._lock:
            try:
                found = self._reader(np.ascontiguousarray(pixels[:, :, ::-1]))
            except Exception as exc:  # of onnxruntime, OpenCV or rapidocr, without a common base
                raise ModelError(f"the text of an image cannot be read: {exc}") from exc
            trim_heap()
        if found.boxes is None:
            return []
        boxes = np.asarray(found.boxes, np.float64)
        return [
            _joined([(found.txts[i], found.scores[i], boxes[i]) for i in row])
            for row in reading_order(boxes)
        ]


def reading_order(boxes: Points) -> list[list[int]]:
    """The rows of boxes (n, 4, 2), top to bottom, each from left to right, as positions in `boxes`.

    The picture may be tilted, so heights are measured across the direction in which most text runs.
    """
    along = boxes[:, 1] - boxes[:, 0]
    lengths = np.linalg.norm(along, axis=1, keepdims=True)
    x_axis = np.median(along / np.maximum(lengths, 1.0), axis=0)
    x_axis = x_axis / np.linalg.norm(x_axis) if x_axis.any() else np.array([1.0, 0.0])
    y_axis = np.array([-x_axis[1], x_axis[0]])
    centres = boxes.mean(axis=1)
    x, y = centres @ x_axis, centres @ y_axis
    heights = np.linalg.norm(boxes[:, 3] - boxes[:, 0], axis=1)
    rows: list[list[int]] = []
    for i in np.argsort(y, kind="stable").tolist():
        if rows and y[i] - y[rows[-1]].mean() < heights[[i, *rows[-1]]].min() / 2:
            rows[-1].append(i)
        else:
            rows.append([i])
    return [sorted(row, key=lambda i: float(x[i])) for row in rows]


def _joined(parts: Sequence[tuple[str, float, Points]]) -> ImageLine:
    """Parts of a row, left to right, as one line."""
    first, last = parts[0][2], parts[-1][2]
    corners = np.round([first[0], last[1], last[2], first[3]], 1).tolist()
    text = " ".join(" ".join(text.split()) for text, _, _ in parts)
    confidence = round(float(min(score for _, score, _ in parts)), 3)
    return ImageLine(text, confidence, tuple((x, y) for x, y in corners))
