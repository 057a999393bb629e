"""What is read in pictures, and is a question about one answered?

    python -m bench.images --json OUT [--only reading answers hashes search] [--take N]
        [--store FILE]

200 signs, receipts, notes and screenshots are drawn from bench/pictures.txt, with varying fonts,
colours, rotations of a few degrees, noise and JPEG losses. Machines with the same fonts draw the
same pictures.

reading: all are remembered as images of one user and then read. Word error rate (words that were
replaced, left out or put in, by the words that are there; case and punctuation count); seconds a
picture, one after another, of the clock and of the processor. answers: each question in a new
`Chat`, from that memory; it is right if it equals one in pictures.txt, but for case, articles and
punctuation. hashes: bits by which the perceptual hash of a picture differs from those of copies
(JPEG, WebP, smaller, brighter, cropped) and of the other pictures. search: what 10,000 images add
to a search of 10,000 other memories in milliseconds, and to the process in bytes.

--take: the first N of each kind. --store: a store to keep; an existing one is not filled again.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

from bench import report
from bench.alone import rss_mb
from edgemem import images as picture
from edgemem.chat import Chat
from edgemem.config import load_settings
from edgemem.memory import Memory
from edgemem.pipeline.image_memories import NEAR
from edgemem.results import Picture as Stored
from edgemem.results import Scope, utc_now
from edgemem.store import NewMemory

TEXTS = Path(__file__).with_name("pictures.txt")
SANS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "LiberationSansNarrow-Regular.ttf")
BOLD = ("DejaVuSans-Bold.ttf", "LiberationSans-Bold.ttf", "DejaVuSerif-Bold.ttf")
MONO = ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "LiberationMono-Bold.ttf")
SLANTED = ("LiberationSerif-Italic.ttf", "DejaVuSerif-Italic.ttf", "DejaVuSans-Oblique.ttf")
Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn text. answers: each of them is right. jpeg: the picture's bytes."""

    kind: str
    lines: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    jpeg: bytes


# -- drawing -------------------------------------------------------------------------------------


def pictures() -> Iterator[Picture]:
    """All of bench/pictures.txt."""
    for i, block in enumerate(TEXTS.read_text("utf-8").split("\n\n")[1:]):
        for head, *lines in _texts(block):
            rng = random.Random(f"{i} {head}")
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
    except OSError:  # not installed; Pillow brings a font
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
    """A JPEG of the image with noise, lower contrast and compression losses."""
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


# -- reading and answering -----------------------------------------------------------------------

USER, NOW = "ana", "2026-12-30T12:00:00+00:00"


def word_errors(truth: Sequence[str], read: Sequence[str]) -> int:
    """Words to replace, leave out or put in (Levenshtein)."""
    row = list(range(len(read) + 1))
    for i, word in enumerate(truth, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(read, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def filled(memory: Memory, drawn: Sequence[Picture]) -> list[tuple[float, float]]:
    """Store and read pictures; returns the wall and CPU seconds of each one's reading."""
    for i, each in enumerate(drawn):
        when = f"2026-{1 + i // 28 % 12:02}-{1 + i % 28:02}T10:00:00+00:00"
        memory.add(images=[each.jpeg], user_id=USER, infer=False, timestamp=when)
    seconds, last = [], (time.perf_counter(), time.process_time())

    def took(_done: int, _all: int) -> None:
        nonlocal last
        now = time.perf_counter(), time.process_time()
        seconds.append((now[0] - last[0], now[1] - last[1]))
        last = now

    memory.read_images(on_progress=took)
    return seconds


def reading(memory: Memory, drawn: Sequence[Picture], took: Any) -> dict[str, Any]:
    """Figures, and a row for each picture."""
    rows = []
    items = {item.image.id: item for item in memory.get_all(user_id=USER) if item.image}
    for each in drawn:
        stored = memory.image(picture.read(each.jpeg).id)
        assert stored is not None and stored.id in items
        truth, read = " ".join(each.lines).split(), (stored.ocr_text or "").split()
        rows.append({"kind": each.kind, "words": len(truth), "errors": word_errors(truth, read),
                     "read": stored.ocr_text})  # fmt: skip
    out: dict[str, Any] = {"rows": rows, **_rates(rows)}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        out[kind] = _rates([row for row in rows if row["kind"] == kind])
    if took:
        for name, column in zip(("seconds", "processor_s"), zip(*took, strict=True), strict=True):
            # The first includes loading the models.
            out[name] = {"first": column[0], "median": median(column[1:]), "most": max(column[1:])}
    return out


def _rates(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors, words = (sum(row[name] for row in rows) for name in ("errors", "words"))
    return {"pictures": len(rows), "word_error_rate": round(errors / words, 4)}


def answers(memory: Memory, drawn: Sequence[Picture]) -> dict[str, Any]:
    """Figures, and a row for each question."""
    rows, right = [], defaultdict[str, list[bool]](list)
    for each in drawn:
        reply = Chat(memory, user_id=USER).send(each.question, timestamp=NOW, remember=False)
        said = "".join(reply).partition("\n\n")[0]  # without the quotation below it
        own = picture.read(each.jpeg).id
        rank = next((i for i, h in enumerate(reply.hits) if h.image and h.image.id == own), None)
        is_right = any(_plain(said) == _plain(answer) for answer in each.answers)
        rows.append({"question": each.question, "answer": said, "right": is_right, "rank": rank,
                     "written": each.answers})  # fmt: skip
        right[each.kind].append(is_right)
        right["all"].append(is_right)
    found = sum(row["rank"] is not None and row["rank"] < 10 for row in rows) / len(rows)
    exact = {kind: round(sum(of) / len(of), 3) for kind, of in right.items()}
    return {"rows": rows, "exact": exact, "hit_at_10": round(found, 3)}


def _plain(text: str) -> str:
    words = re.findall(r"[^\W_]+(?:[.:,'-][^\W_]+)*", text.lower())
    return " ".join(word for word in words if word not in ("a", "an", "the"))


# -- hashes --------------------------------------------------------------------------------------


def hashes(drawn: Sequence[Picture]) -> dict[str, Any]:
    """Shares of copies, and of other pictures, within some bits; the bound is `NEAR`."""
    opened = [Image.open(BytesIO(each.jpeg)).convert("RGB") for each in drawn]
    own = np.stack([_bits(image) for image in opened])
    copies = {
        "jpeg 40": lambda image: _saved(image, "JPEG", quality=40),
        "webp 30": lambda image: _saved(image, "WEBP", quality=30),
        "half": lambda image: _saved(image.resize((image.width // 2, image.height // 2))),
        "quarter": lambda image: _saved(image.resize((image.width // 4, image.height // 4))),
        "brighter": lambda image: _saved(ImageEnhance.Brightness(image).enhance(1.2)),
        "cropped 2 %": lambda image: _saved(image.crop(_inner(image, 0.02))),
        "cropped 5 %": lambda image: _saved(image.crop(_inner(image, 0.05))),
    }
    distances = {
        name: np.array([(own[i] != _bits(copy(image))).sum() for i, image in enumerate(opened)])
        for name, copy in copies.items()
    }
    apart = (own[:, None] != own[None]).sum(axis=-1)
    distances["others"] = apart[np.triu_indices(len(drawn), 1)]
    bounds = sorted({4, 6, NEAR, 10, 12})
    return {
        name: {f"<= {bits}": round(float((found <= bits).mean()), 4) for bits in bounds}
        for name, found in distances.items()
    }


def _bits(image: Image.Image | bytes) -> Any:
    data = image if isinstance(image, bytes) else _saved(image)
    return np.unpackbits(np.frombuffer(bytes.fromhex(picture.read(data).phash), np.uint8))


def _saved(image: Image.Image, kind: str = "PNG", **more: int) -> bytes:
    out = BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def _inner(image: Image.Image, share: float) -> tuple[int, int, int, int]:
    w, h = image.size
    return round(w * share), round(h * share), round(w * (1 - share)), round(h * (1 - share))


# -- search --------------------------------------------------------------------------------------

MANY, ROUNDS = 10_000, 30


def search(images: int) -> dict[str, float]:
    """Milliseconds of a search, and resident memory; for a process that does nothing else."""
    rng, numbers = random.Random(0), np.random.default_rng(0)
    written = [line for block in TEXTS.read_text("utf-8").split("\n\n")[1:] for line in
               block.splitlines()[1:]]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Memory(Path(folder) / "m.db") as memory:
        dim, now = memory.embedder.dim, utc_now()
        with memory._writing() as tx:
            for i in range(MANY + images):
                text = " ".join(rng.choices(written, k=4))
                vector = numbers.normal(size=(1, dim)).astype(np.float32)
                made = NewMemory(
                    id=f"m{i}", kind="fact" if i < MANY else "image", memory=text, search_text=text,
                    scope=Scope(USER), created_at=now, valid_from=now,
                    vectors=vector / np.linalg.norm(vector),
                )  # fmt: skip
                tx.add_memory(made)
                if i >= MANY:
                    hashed = numbers.bytes(8).hex()
                    tx.add_image(made.id, Stored(
                        id=f"{i:064x}", mime="image/png", size_bytes=1, width=9, height=9,
                        data=b"x", thumbnail=b"x" * 4000, phash=hashed,
                    ))  # fmt: skip
        memory.search("What is the total?", user_id=USER)
        took = []
        for i in range(ROUNDS):
            found = memory.search(written[7 * i], user_id=USER)
            took.append(found.search_ms)
        out = {"search_ms": median(took), "rss_mb": rss_mb() or 0.0}
        if images:
            alike = [memory.search(image=_noise(i), user_id=USER).search_ms for i in range(5)]
            out["alike_ms"] = median(alike)
        return out


def _noise(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    return _saved(Image.fromarray(pixels))


def _apart(images: int) -> dict[str, float]:
    code = f"import json, bench.images as b; print(json.dumps(b.search({images})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


# -- the run -------------------------------------------------------------------------------------

PARTS = ("reading", "answers", "hashes", "search")


def main() -> None:
    parser = report.parser("images", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--take", type=int, metavar="N")
    parser.add_argument("--store", type=Path, metavar="FILE")
    given = parser.parse_args()
    drawn = [each for _, of in sorted(_by_kind().items()) for each in of[: given.take]]
    summary: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    if {"reading", "answers"} & set(given.only):
        settings = replace(load_settings(), image_text="off")
        with tempfile.TemporaryDirectory() as folder:
            file = given.store or Path(folder) / "images.db"
            new = not file.exists()
            with Memory(file, settings=settings) as memory:
                took = filled(memory, drawn) if new else []
                for part in (p for p in ("reading", "answers") if p in given.only):
                    found = reading(memory, drawn, took) if part == "reading" else answers(
                        memory, drawn
                    )  # fmt: skip
                    rows += [{"part": part, **row} for row in found.pop("rows")]
                    summary[part] = found
    if "hashes" in given.only:
        summary["hashes"] = hashes(drawn)
    if "search" in given.only:
        without, with_images = _apart(0), _apart(MANY)
        summary["search"] = {"without": without, "with": with_images}
    report.write(given.json, summary, rows)
    print(json.dumps(summary, indent=1))


def _by_kind() -> dict[str, list[Picture]]:
    kinds = defaultdict[str, list[Picture]](list)
    for each in pictures():
        kinds[each.kind].append(each)
    return kinds


if __name__ == "__main__":
    main()
