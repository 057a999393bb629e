"""What the tests of images share: pictures made here, with whatever a photo may tell."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

CAMERA = "SECRETCAMERA"


def drawn(size: tuple[int, int] = (400, 300), seed: int = 0) -> Image.Image:
    """A picture of soft spots; another seed gives one that looks different."""
    spots = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize(size)


def saved(image: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def noise(side: int = 300, seed: int = 0) -> bytes:
    """A PNG that cannot be made small: 3 bytes a pixel."""
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels))


def exif(orientation: int = 1) -> Image.Exif:
    """Taken in Oslo at nine in the morning of 2 April 2023, by a camera that says its name."""
    found = Image.Exif()
    found[0x0112], found[0x010F] = orientation, CAMERA
    gps = found.get_ifd(0x8825)
    gps[1], gps[2], gps[3], gps[4] = "N", (59.0, 54.0, 50.0), "E", (10.0, 45.0, 8.0)
    taken = found.get_ifd(0x8769)
    taken[0x9003], taken[0x9011] = "2023:04:02 09:00:00", "+02:00"
    return found


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def uri(data: bytes, mime: str = "image/png") -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def part(data: bytes, **more: Any) -> dict[str, Any]:
    """An image as OpenAI's clients send it."""
    return {"type": "image_url", "image_url": {"url": uri(data)}, **more}
