"""What is read in pictures, and is a question about one answered?

    python -m bench.images --json OUT [--only reading answers search] [--take N] [--save FOLDER]

200 signs, receipts, notes and screenshots are drawn from bench/pictures.txt, each with another
font, colours, a turn of a few degrees, noise and JPEG's losses, always the same for a seed.

reading: word error rate (substitutions, insertions and deletions by words of the truth; case and
punctuation count) and seconds a picture, one at a time. answers: all are remembered as images of
one user, then each question is asked in a new `Chat`; right is an answer that is one of those
written there, but for case, articles and punctuation. search: what 10,000 images add to a search
in milliseconds and to the process in bytes. hashes: how far the perceptual hash of a picture lies
from those of its copies (smaller, of another format, lighter, cropped) and of other pictures.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TEXTS = Path(__file__).with_name("pictures.txt")
SANS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "LiberationSansNarrow-Regular.ttf")
BOLD = ("DejaVuSans-Bold.ttf", "LiberationSans-Bold.ttf", "DejaVuSerif-Bold.ttf")
MONO = ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "LiberationMono-Bold.ttf")
SLANTED = ("LiberationSerif-Italic.ttf", "DejaVuSerif-Italic.ttf", "DejaVuSans-Oblique.ttf")
Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn text. jpeg: its bytes; answers: as good as each other."""

    kind: str
    lines: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    jpeg: bytes


# -- drawing -------------------------------------------------------------------------------------


def pictures(seed: int = 0) -> Iterator[Picture]:
    """All of bench/pictures.txt."""
    for i, block in enumerate(TEXTS.read_text("utf-8").split("\n\n")[1:]):
        for head, *lines in _texts(block):
            rng = random.Random(1000 * seed + i + hash_of(head))
            kind, _, rest = head.partition(": ")
            if kind == "shop":
                kind, (question, answers, lines) = "receipt", _receipt(rest, rng)
            else:
                question, *answers = (part.strip() for part in rest.split("|"))
            jpeg = _spoilt(_DRAW[kind](lines, rng), rng)
            yield Picture(kind, tuple(lines), question, tuple(answers), jpeg)


def _texts(block: str) -> Iterator[list[str]]:
    lines = block.strip().splitlines()
    if lines[0].startswith("shop: "):
        yield from ([line] for line in lines)
    else:
        yield lines


def hash_of(text: str) -> int:
    return sum(text.encode()) % 997


def _receipt(written: str, rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A question, its answers and the lines of a receipt."""
    name, street, goods = (part.strip() for part in written.split("|"))
    cents = {each.strip(): rng.randrange(80, 3000) for each in goods.split(",")}
    day = f"{rng.randint(1, 28):02}.{rng.randint(1, 12):02}.2026"
    clock = f"{rng.randint(8, 19):02}:{rng.randint(0, 59):02}"
    total = f"{sum(cents.values()) / 100:.2f}"
    prices = [f"{each:<18}{price / 100:>8.2f}" for each, price in cents.items()]
    lines = [name.upper(), street, f"{day}  {clock}", *prices, f"{'TOTAL':<18}{total:>8}"]
    lines += [f"Card ending {rng.randint(1000, 9999)}", rng.choice(["Thank you", "See you soon"])]
    item = rng.choice(list(cents))
    return *rng.choice([
        (f"What was the total of the receipt from {name}?", [total]),
        (f"How much was the {item.lower()} at {name}?", [f"{cents[item] / 100:.2f}"]),
        (f"What is the date on the receipt from {name}?", [day]),
        (f"Which street is {name} in?", [street, street.partition(" ")[2]]),
    ]), lines  # fmt: skip


def _font(names: Sequence[str], size: int, rng: random.Random) -> Any:
    try:
        return ImageFont.truetype(rng.choice(names), size)
    except OSError:  # this machine has not got it; Pillow has one of its own
        return ImageFont.load_default(size)


def _written(
    lines: Sequence[str], font: Any, ink: Colour, paper: Colour, *, pad: int, left: bool
) -> Image.Image:
    """Lines under each other on a sheet that is just large enough."""
    height = round(sum(font.getmetrics()) * 1.25)
    widths = [round(font.getlength(line)) for line in lines]
    wide = max(widths)
    sheet = Image.new("RGB", (wide + 2 * pad, height * len(lines) + 2 * pad), paper)
    draw = ImageDraw.Draw(sheet)
    for i, (line, width) in enumerate(zip(lines, widths, strict=True)):
        x = pad if left else pad + (wide - width) // 2
        draw.text((x, pad + i * height), line, font=font, fill=ink)
    return sheet


def _sign(lines: Sequence[str], rng: random.Random) -> Image.Image:
    ink, paper = rng.choice([
        ((250, 250, 250), (20, 70, 150)), ((20, 20, 20), (245, 205, 50)),
        ((255, 255, 255), (0, 100, 60)), ((160, 20, 20), (245, 245, 240)),
        ((240, 230, 200), (90, 55, 30)), ((40, 40, 40), (190, 190, 190)),
    ])  # fmt: skip
    board = _written(lines, _font(BOLD, rng.randint(34, 64), rng), ink, paper, pad=50, left=False)
    wall: Colour = (rng.randint(60, 200), rng.randint(60, 200), rng.randint(60, 200))
    return _turned(board, rng.uniform(-5, 5), wall)


def _paper_receipt(lines: Sequence[str], rng: random.Random) -> Image.Image:
    grey = rng.randint(40, 120)  # thermal paper fades
    font = _font(MONO, rng.randint(20, 30), rng)
    sheet = _written(lines, font, (grey, grey, grey + 10), (235, 232, 225), pad=40, left=True)
    return _turned(sheet, rng.uniform(-4, 4), (70, 60, 50))


def _note(lines: Sequence[str], rng: random.Random) -> Image.Image:
    paper = rng.choice([(250, 240, 150), (245, 245, 235), (220, 240, 220), (250, 215, 220)])
    ink = rng.choice([(30, 40, 120), (40, 40, 40), (110, 60, 60)])
    font = _font(SLANTED, rng.randint(26, 44), rng)
    return _turned(_written(lines, font, ink, paper, pad=45, left=True), rng.uniform(-6, 6), paper)


def _screen(lines: Sequence[str], rng: random.Random) -> Image.Image:
    ink, paper = rng.choice([((30, 30, 30), (250, 250, 250)), ((225, 225, 230), (25, 27, 33))])
    font = _font(SANS, rng.randint(22, 34), rng)
    text = _written(lines, font, ink, paper, pad=40, left=True)
    screen = Image.new("RGB", (max(720, text.width), 1280), paper)
    screen.paste(text, (0, rng.randint(60, 500)))
    return screen


_DRAW = {"sign": _sign, "receipt": _paper_receipt, "note": _note, "screenshot": _screen}


def _turned(image: Image.Image, degrees: float, behind: Colour) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=behind)


def _spoilt(image: Image.Image, rng: random.Random) -> bytes:
    """A JPEG with noise and JPEG's own traces, some of them of low contrast."""
    pixels = np.asarray(image, np.float32)
    noise = np.random.default_rng(rng.randrange(1 << 30)).normal(
        0, rng.uniform(0, 14), pixels.shape
    )
    contrast = rng.uniform(0.45, 1.0)
    pixels = 128 + (pixels - 128) * contrast + noise
    out = BytesIO()
    made = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    made.save(out, "JPEG", quality=rng.randint(35, 85))
    return out.getvalue()
