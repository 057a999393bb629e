"""Pictures: from bytes that somebody sent to one that may be stored, and the text in it.

The first bytes of a file decide its format, whatever its name says. Its size is checked before a
pixel is decoded, and a JPEG is decoded small. Metadata goes no further than this module: only the
time and, if wanted, the place are read, and the stored bytes have only the orientation.

The models of OCR (PP-OCRv6 small: detection, direction and recognition, of Latin, Chinese and
Japanese) are in rapidocr's wheel, so nothing is downloaded.

Knows bytes and pixels; no store, and nothing else of what a picture shows. The only importer of
Pillow and of rapidocr.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgemem.config import require
from edgemem.errors import ConfigError, InputError, ModelError
from edgemem.results import ImageLine, ImageMime, Picture, to_utc
from edgemem.runtime.embedder import open_session
from edgemem.runtime.machine import trim_heap

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["LONGEST", "MAX_BYTES", "OCR_BYTES", "THUMBNAIL", "Ocr", "outgoing", "pixels"]
__all__ += ["read", "square"]

MAX_BYTES = 33_554_432
MAX_PIXELS = 50_000_000
"""The largest that phones make by default. A PNG of so many takes 200 MB while it is decoded."""
THUMBNAIL = 256
"""Pixels of a thumbnail's longest side."""
OUTGOING = 512
"""Pixels of the longest side of an image for the cloud, where low detail means this size."""
_DRAFT = 2 * THUMBNAIL  # least pixels of a JPEG's longest side when it is decoded for a thumbnail
_HASH, _HASHED = 8, 32  # frequencies and pixels of a perceptual hash, per side
MIMES: dict[str, ImageMime] = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
}
"""The formats that are stored. A BMP or TIFF becomes a PNG: it is smaller, and browsers show it."""
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
_MAGIC = (
    (rb"\xff\xd8\xff", "JPEG"),
    (rb"\x89PNG\r\n\x1a\n", "PNG"),
    (rb"RIFF....WEBP", "WEBP"),
    (rb"GIF8[79]a", "GIF"),
    (rb"BM", "BMP"),
    (rb"II[*+]\0|MM\0[*+]", "TIFF"),
)
_REFUSED_KINDS = (
    (rb"....ftyp(heic|heix|mif1|msf1|hevc)", "HEIC"),
    (rb"....ftypavi[fs]", "AVIF"),
    (rb"%PDF", "PDF"),
    (rb"\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*(<!doctype svg[^>]*>\s*)?<svg", "SVG"),
    (rb"\s*<(!doctype )?html", "HTML"),
    (rb"PK\x03\x04", "a ZIP archive"),
)
_DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_ORIENTATION, _TIME, _EXIF, _GPS = 0x0112, 0x0132, 0x8769, 0x8825
_TAKEN, _OFFSET = 0x9003, 0x9011


def read(source: bytes | str | Path, *, place: bool = False) -> Picture:
    """A picture with all that is stored of it.

    source: its bytes, a path, or a data URI. place: also read where it was taken. For an animation
    or a file with several pages, all fields but `data` describe the first frame. Raises InputError
    if the source is no picture, damaged or too large; ConfigError without Pillow.
    """
    data = _bytes(source)
    kind = _kind(data)
    with _opened(data, kind) as image:
        exif, orientation = _exif(image), _orientation_of(image)
        animated = bool(getattr(image, "is_animated", False))
        width, height = image.size[::-1] if orientation >= 5 else image.size
        taken_at, where = _taken_at(exif), _place(exif) if place else None
        small = _upright(image, orientation, _DRAFT)
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        out = io.BytesIO()
        small.save(out, "WEBP", quality=70)
    kept, kind = _stored(data, kind, orientation)
    return Picture(
        id=hashlib.sha256(kept).hexdigest(),
        mime=MIMES[kind],
        size_bytes=len(kept),
        width=width,
        height=height,
        taken_at=taken_at,
        place=where,
        data=kept,
        thumbnail=out.getvalue(),
        phash=_phash(small),
        animated=animated,
    )


def pixels(data: bytes, longest: int) -> NDArray[np.uint8]:
    """(h, w, 3) uint8 RGB, upright, on white; its longest side at most `longest` pixels."""
    with _opened(data, _kind(data)) as image:
        small = _upright(image, _orientation_of(image), longest)
        small.thumbnail((longest, longest))
        return np.array(small, dtype=np.uint8)


def square(data: bytes, side: int, *, crop: bool) -> NDArray[np.uint8]:
    """(side, side, 3) uint8 RGB, upright. crop: the middle square; else the whole, distorted."""
    from PIL import Image, ImageOps

    seen = Image.fromarray(pixels(data, max(OUTGOING, 2 * side)))
    bicubic = Image.Resampling.BICUBIC
    fitted = (
        ImageOps.fit(seen, (side, side), bicubic) if crop else seen.resize((side,) * 2, bicubic)
    )
    return np.asarray(fitted, dtype=np.uint8)


def outgoing(data: bytes) -> bytes:
    """A JPEG that may leave the device: no metadata, at most OUTGOING pixels a side."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels(data, OUTGOING)).save(out, "JPEG", quality=85)
    return out.getvalue()


# -- what was given ----------------------------------------------------------------------------


def _bytes(source: bytes | str | Path) -> bytes:
    if isinstance(source, str) and source[:5].lower() == "data:":
        found = _DATA_URI.match(source)
        if found is None:
            raise InputError(
                f"the data URI {source[:40]!r} is not in base64; give data:image/png;base64,…"
            )
        if len(source) > found.end() + 4 * (MAX_BYTES // 3 + 1):
            raise _too_large(3 * (len(source) - found.end()) // 4)
        try:
            data = base64.b64decode(source[found.end() :], validate=True)
        except (binascii.Error, ValueError) as exc:
            raise InputError(
                f"the data URI of an image is no base64 ({exc}); encode its bytes anew"
            ) from exc
    elif isinstance(source, str) and _ADDRESS.match(source):
        raise InputError(
            f"the image {source[:60]!r} is an address, and nothing is fetched; give a path, its "
            "bytes or a data URI"
        )
    elif isinstance(source, str | Path):
        try:
            with open(source, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            raise InputError(f"cannot read the image {source} ({why}); give another file") from exc
    else:
        data = source
    if len(data) > MAX_BYTES:
        raise _too_large(len(data))
    return data


def _too_large(size: int) -> InputError:
    return InputError(
        f"the image has {size:,} bytes or more; at most {MAX_BYTES:,} are allowed: save it smaller"
    )


def _kind(data: bytes) -> str:
    """The format of bytes, by how they begin. Raises InputError if it is none of _MAGIC's."""
    start = data[:1024]
    for form, kind in _MAGIC:
        if re.match(form, start, re.DOTALL):
            return kind
    others = [
        what for form, what in _REFUSED_KINDS if re.match(form, start, re.DOTALL | re.IGNORECASE)
    ]
    unknown = f"of no known kind ({start[:8]!r})" if data else "empty"
    raise InputError(
        f"the image is {others[0] if others else unknown}; give a PNG, JPEG, WebP, GIF, BMP or "
        "TIFF (export it as one)"
    )


@contextmanager
def _opened(data: bytes, kind: str) -> Iterator[Image.Image]:
    """The picture, its size checked and no pixel decoded yet. Pillow's errors become InputError."""
    try:
        with _pillow().open(io.BytesIO(data), formats=[kind]) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise InputError(
                    f"the image has {width} × {height} pixels; at most {MAX_PIXELS:,} are allowed: "
                    "save it smaller"
                )
            if image.mode in ("I", "F"):
                raise InputError("the image has 32 bits a channel; export it with 8")
            yield image
    except (InputError, ConfigError):
        raise
    except Exception as exc:  # a damaged file makes Pillow's parsers raise anything
        raise InputError(
            f"the image is damaged, or no {kind} that can be read "
            f"({type(exc).__name__}: {str(exc)[:200]}); save it anew"
        ) from exc


@cache
def _pillow() -> Any:
    """Pillow's module `Image`, its warnings off: what is wrong with a file is raised."""
    require("images")
    from PIL import Image

    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image


# -- pixels ------------------------------------------------------------------------------------


def _orientation_of(image: Image.Image) -> int:
    """How the picture lies in its file: EXIF's orientation, 1 to 8; 1 is upright."""
    turn = _exif(image).get(_ORIENTATION, 1)
    # Pillow turns a TIFF upright by itself.
    known = isinstance(turn, int) and 2 <= turn <= 8 and image.format != "TIFF"
    return turn if known else 1


def _upright(image: Image.Image, orientation: int, longest: int) -> Image.Image:
    """The picture in RGB, turned upright, on white where it is transparent.

    A larger picture is first shrunk, to a longest side of `longest` pixels.
    """
    from PIL import Image, ImageOps

    if image.format in ("JPEG", "MPO"):
        image.draft("RGB", (longest, longest))
    image.load()
    image = _eight_bit(image)
    image.thumbnail((longest, longest), reducing_gap=2.0)
    if "A" in image.getbands():
        on = Image.new("RGBA", image.size, "white")
        on.alpha_composite(image.convert("RGBA"))
        image = on
    image = image.convert("RGB")
    image.info = {}  # a damaged EXIF would be read again
    image.getexif()[_ORIENTATION] = orientation
    return ImageOps.exif_transpose(image)


def _eight_bit(image: Image.Image) -> Image.Image:
    """The picture in a mode that Pillow can shrink: no palette, eight bits a channel."""
    from PIL import Image

    if image.mode in ("L", "LA", "RGB", "RGBA"):
        return image
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _phash(small: Image.Image) -> str:
    """A perceptual hash (pHash), 64 bits in hexadecimal.

    Each bit says whether one of the 8 × 8 lowest frequencies of the grey picture is above their
    median. The bit of the mean is always 0. Source: Zauner, "Implementation and Benchmarking of
    Perceptual Image Hash Functions" (2010).
    """
    from PIL import Image

    grey = small.convert("L").resize((_HASHED, _HASHED), Image.Resampling.BOX)
    angles = np.outer(np.arange(_HASH), 2 * np.arange(_HASHED) + 1) * np.pi / (2 * _HASHED)
    low = (np.cos(angles) @ np.asarray(grey, np.float64) @ np.cos(angles).T).ravel()
    return np.packbits((low > np.median(low)) & (np.arange(low.size) > 0)).tobytes().hex()


# -- metadata ----------------------------------------------------------------------------------


def _exif(image: Image.Image) -> Image.Exif:
    """A picture's EXIF; an empty one if it is damaged, as the pixels may be whole."""
    from PIL import Image

    try:
        exif = image.getexif()
        for block in (_EXIF, _GPS):
            exif.get_ifd(block)
        for tag in (_ORIENTATION, _TIME):
            exif.get(tag)
    except Exception:  # Pillow's parsers raise anything
        return Image.Exif()
    return exif


def _taken_at(exif: Image.Exif) -> str | None:
    """When the photo was taken, ISO-8601 UTC, or None. Without a valid zone: this machine's."""
    inner = exif.get_ifd(_EXIF)
    text, offset = inner.get(_TAKEN) or exif.get(_TIME), inner.get(_OFFSET)
    try:
        moment = datetime.strptime(str(text).strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
        with suppress(ValueError):
            return to_utc(moment.isoformat() + str(offset or "").strip("\0 "))
        return to_utc(moment)
    except ValueError:
        return None


def _place(exif: Image.Exif) -> str | None:
    """Where the photo was taken, as "latitude,longitude" in degrees, or None."""
    gps = exif.get_ifd(_GPS)
    try:
        south, west = gps.get(1) == "S", gps.get(3) == "W"
        latitude, longitude = _degrees(gps[2], south), _degrees(gps[4], west)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not (abs(latitude) <= 90 and abs(longitude) <= 180):
        return None
    return f"{latitude:.5f},{longitude:.5f}"


def _degrees(parts: Any, negative: bool) -> float:
    degrees, minutes, seconds = map(float, parts)
    value = degrees + minutes / 60 + seconds / 3600
    return -value if negative else value


def _stored(data: bytes, kind: str, orientation: int) -> tuple[bytes, str]:
    """The bytes to store, without metadata, and their format.

    Metadata is cut out of the file if that is possible; else the picture is saved anew as a PNG.
    """
    turn = orientation if orientation > 1 else None
    try:
        if kind in _STRIPPERS:
            return _STRIPPERS[kind](data, turn), kind
    except (IndexError, struct.error, ValueError):
        pass  # Pillow reads more files than the functions of _STRIPPERS do
    with _opened(data, kind) as image:
        image.load()
        if image.mode not in _PNG_MODES:
            image = _eight_bit(image)
        out = io.BytesIO()
        exif = {} if turn is None else {"exif": _orientation_exif(turn)}
        image.info = {k: v for k, v in image.info.items() if k == "transparency"}
        image.save(out, "PNG", **exif)
    if out.tell() > MAX_BYTES:
        raise _too_large(out.tell())
    return out.getvalue(), "PNG"


def _orientation_exif(turn: int) -> bytes:
    """A block of EXIF that holds only the orientation `turn`."""
    entry = struct.pack(">HHHIHHI", 1, _ORIENTATION, 3, 1, turn, 0, 0)
    return b"MM\0*\0\0\0\x08" + entry


# Segments of applications that stay: the density, the colour profile, the colour transform.
_JPEG_KEPT = {0xE0: b"JFIF\0", 0xE2: b"ICC_PROFILE\0", 0xEE: b"Adobe"}
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


def _stripped_jpeg(data: bytes, turn: int | None) -> bytes:
    out = [data[:2]]
    if turn is not None:
        block = b"Exif\0\0" + _orientation_exif(turn)
        out.append(b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block)
    at = 2
    while True:
        found = _JPEG_MARKER.search(data, at)
        if found is None:
            raise ValueError("a JPEG without an end")
        out.append(data[at : found.start()])  # pixels, after a start of scan
        marker = found.group()[-1]
        if marker == 0xD9:
            return b"".join([*out, b"\xff\xd9"])  # what follows may be another photo
        (size,) = struct.unpack_from(">H", data, found.end())
        segment = data[found.end() : found.end() + size]
        at = found.end() + max(size, 2)
        if marker == 0xE0:  # its 14 bytes without the thumbnail that may follow
            segment = b"\0\x10" + segment[2:14].ljust(12, b"\0") + b"\0\0"
        noted = 0xE0 <= marker <= 0xEF or marker == 0xFE  # an application's segment, or a comment
        if not noted or segment[2:].startswith(_JPEG_KEPT.get(marker, ())):
            out.append(bytes((0xFF, marker)) + segment)


_PNG_KEPT = frozenset(
    b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB iCCP sBIT bKGD pHYs cICP acTL fcTL fdAT".split()
)


def _stripped_png(data: bytes, turn: int | None) -> bytes:
    out = [data[:8]]
    at = 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        name = data[at + 4 : at + 8]
        if name == b"IDAT" and turn is not None:
            body = b"eXIf" + _orientation_exif(turn)
            out.append(struct.pack(">I", len(body) - 4) + body)
            out.append(struct.pack(">I", zlib.crc32(body)))
            turn = None
        if name in _PNG_KEPT:
            out.append(data[at : at + 12 + size])
        at += 12 + size
        if name == b"IEND":
            return b"".join(out)
    raise ValueError("a PNG without an end")


_WEBP_KEPT = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF", b"ICCP"})


def _stripped_webp(data: bytes, turn: int | None) -> bytes:
    out: list[bytes] = []
    at = 12
    end = min(len(data), 8 + struct.unpack_from("<I", data, 4)[0])
    while at < end:
        (size,) = struct.unpack_from("<I", data, at + 4)
        name, chunk = data[at : at + 4], data[at : at + 8 + size + size % 2]
        if name == b"VP8X":
            flags = chunk[8] & ~0x0C | (0x08 if turn is not None else 0)  # EXIF 8, XMP 4
            chunk = chunk[:8] + bytes([flags]) + chunk[9:]
        if name in _WEBP_KEPT:
            out.append(chunk)
        at += len(chunk)
    if turn is not None:
        block = _orientation_exif(turn)
        out.append(b"EXIF" + struct.pack("<I", len(block)) + block)
    body = b"".join(out)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def _stripped_gif(data: bytes, turn: int | None) -> bytes:
    at = 13 + _palette(data[10])
    out = [data[:at]]
    while data[at] != 0x3B:
        start, block = at, data[at]
        if block == 0x2C:
            at += 11 + _palette(data[at + 9])
        elif block == 0x21:
            at += 2
        else:
            raise ValueError("an unknown block of a GIF")
        while data[at]:
            at += 1 + data[at]
        at += 1
        loops = data[start + 1 : start + 14].startswith(b"\xff\x0bNETSCAPE2.0")
        if block == 0x2C or data[start + 1] == 0xF9 or loops:  # F9: how a frame is shown
            out.append(data[start:at])
    return b"".join([*out, b";"])


def _palette(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


_STRIPPERS = {
    "JPEG": _stripped_jpeg,
    "PNG": _stripped_png,
    "WEBP": _stripped_webp,
    "GIF": _stripped_gif,
}


# -- the text in a picture -------------------------------------------------------------------------

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
