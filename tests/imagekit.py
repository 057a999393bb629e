"""What the tests of images share: pictures made here, with whatever a photo may tell."""

import base64
import io

import numpy as np
from PIL import Image

CAMERA = "SECRETCAMERA"


def drawn(size=(400, 300), seed=0):
    """A picture of soft spots; another seed gives one that looks different."""
    spots = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(spots).resize(size)


def saved(image, kind="PNG", **more):
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def noise(side=300, seed=0):
    """A PNG that cannot be made small: 3 bytes a pixel."""
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels))


def exif(orientation=1):
    """Taken in Oslo at nine in the morning of 2 April 2023, by a camera that says its name."""
    found = Image.Exif()
    found[0x0112], found[0x010F] = orientation, CAMERA
    gps = found.get_ifd(0x8825)
    gps[1], gps[2], gps[3], gps[4] = "N", (59.0, 54.0, 50.0), "E", (10.0, 45.0, 8.0)
    taken = found.get_ifd(0x8769)
    taken[0x9003], taken[0x9011] = "2023:04:02 09:00:00", "+02:00"
    return found


def opened(data):
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def uri(data, mime="image/png"):
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def part(data, **more):
    """An image as OpenAI's clients send it."""
    return {"type": "image_url", "image_url": {"url": uri(data)}, **more}
