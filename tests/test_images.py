"""Pictures from anybody: what they are, what is kept of them, and what no file may do."""

import base64
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from imagekit import CAMERA, drawn, exif, opened, saved, uri
from PIL import Image, ImageCms

from edgemem import config
from edgemem import images as picture
from edgemem.errors import ConfigError, InputError

KINDS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_read_by_its_content_whatever_its_name(kind, tmp_path):
    data = saved(drawn(), kind)
    file = tmp_path / "photo.txt"
    file.write_bytes(data)
    mime = {"BMP": "image/png", "TIFF": "image/png"}.get(kind, f"image/{kind.lower()}")
    for source in (data, file, str(file), uri(data, "application/x-anything")):
        found = picture.read(source)
        assert (found.mime, found.width, found.height) == (mime, 400, 300)
        assert found.size_bytes == len(found.data)
        assert max(opened(found.thumbnail).size) == picture.THUMBNAIL
        assert picture.read(found.data).id == found.id  # what is stored is stored as it is


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_photo_keeps_its_pixels_and_its_orientation_and_tells_nothing_else(kind):
    more = {"comment": b"SECRETCOMMENT"} if kind == "JPEG" else {}
    more |= {"xmp": b"<x>SECRETXMP</x>"} if kind in ("JPEG", "WEBP") else {}
    data = saved(drawn(), kind, exif=exif(orientation=6), **more)
    assert CAMERA.encode() in data
    found = picture.read(data)
    assert (found.width, found.height) == (300, 400)
    assert b"SECRET" not in found.data and set(opened(found.data).getexif()) <= {0x0112}
    seen = opened(data)
    if kind != "TIFF":  # which Pillow turns by itself, and which is saved anew
        np.testing.assert_array_equal(opened(found.data), seen)
        seen = seen.transpose(Image.Transpose.ROTATE_270)
    apart = picture.pixels(found.data, 64).astype(int) - picture.pixels(saved(seen), 64)
    assert abs(apart).mean() < 3


def test_a_photo_behind_the_photo_is_cut_off_and_the_colour_profile_stays():
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    first = saved(drawn(), "JPEG", exif=exif(), icc_profile=profile, progressive=True)
    data = first + saved(drawn(seed=1), "JPEG", exif=exif())
    found = picture.read(data)
    assert CAMERA.encode() not in found.data and len(found.data) < len(first)
    assert opened(found.data).info["icc_profile"] == profile
    assert found.id == picture.read(first).id
    pair = saved(drawn(), "MPO", save_all=True, append_images=[drawn(seed=1)], exif=exif())
    assert (picture.read(pair).mime, picture.read(pair).width) == ("image/jpeg", 400)
    assert len(picture.read(pair).data) < len(pair) / 1.5


def test_a_thumbnail_in_the_head_of_a_jpeg_is_cut_off_and_its_density_stays():
    plain = saved(drawn(), "JPEG", dpi=(300, 200))
    end = plain.index(b"JFIF\0") + 14
    assert plain[end - 2 : end] == b"\0\0"  # the size of its thumbnail
    thumbnail = b"SECRETFACE!!" * 4
    length = struct.pack(">H", 16 + len(thumbnail))
    data = plain[: end - 16] + length + plain[end - 14 : end - 2] + b"\4\4" + thumbnail
    found = picture.read(data + plain[end:])
    assert found.data == picture.read(plain).data and b"SECRET" not in found.data
    assert opened(found.data).info["dpi"] == (300, 200)


def test_the_time_of_a_photo_is_read_and_its_place_only_if_that_is_wanted():
    data = saved(drawn(), "JPEG", exif=exif())
    assert picture.read(data).taken_at == "2023-04-02T07:00:00.000+00:00"
    assert picture.read(data).place is None
    assert picture.read(data, place=True).place == "59.91389,10.75222"


@pytest.mark.parametrize("value", ["2023:02:31 09:00:00", "soon", "0000:00:00 00:00:00", "\0"])
def test_a_time_that_is_none_is_none(value):
    wrong = exif()
    wrong.get_ifd(0x8769)[0x9003] = value
    assert picture.read(saved(drawn(), "JPEG", exif=wrong)).taken_at is None


@pytest.mark.parametrize("zone", ["   :  ", "+9:00", "+99:00", "local"])
def test_a_time_with_a_zone_that_is_none_is_read_as_one_without(zone):
    wrong, without = exif(), exif()
    wrong.get_ifd(0x8769)[0x9011] = zone
    del without.get_ifd(0x8769)[0x9011]
    found = picture.read(saved(drawn(), "JPEG", exif=wrong)).taken_at
    assert found == picture.read(saved(drawn(), "JPEG", exif=without)).taken_at is not None


def test_a_photo_with_a_damaged_exif_is_read_without_it():
    plain = saved(drawn(), "JPEG")
    for damaged in (b"Exif\0\0garbage!", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II"):
        segment = b"\xff\xe1" + struct.pack(">H", len(damaged) + 2) + damaged
        found = picture.read(plain[:2] + segment + plain[2:], place=True)
        assert (found.taken_at, found.place) == (None, None)
        assert found.data == picture.read(plain).data
        assert picture.pixels(plain[:2] + segment + plain[2:], 100).shape == (75, 100, 3)


def test_a_place_that_is_none_is_none():
    for wrong in ((59.0, 54.0), (999.0, 0.0, 0.0), (59.0,) * 4):
        given = exif()
        given.get_ifd(0x8825)[2] = wrong
        assert picture.read(saved(drawn(), "JPEG", exif=given), place=True).place is None


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_gives_the_same_hash_and_a_thumbnail(mode):
    grey = drawn().convert("L")
    found = picture.read(saved(grey.convert("RGB").convert(mode), "TIFF"))
    assert _apart(found.phash, picture.read(saved(grey)).phash) <= 4
    assert opened(found.thumbnail).mode == "RGB"


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_picture_of_32_bits_is_refused(mode):
    with pytest.raises(InputError, match="32 bits a channel; export it with 8"):
        picture.read(saved(drawn().convert("L").convert(mode), "TIFF"))


def test_sixteen_bits_and_a_cmyk_jpeg_are_seen_as_they_look():
    grey = drawn().convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    for data in (saved(deep), saved(deep, "TIFF"), saved(grey.convert("CMYK"), "JPEG")):
        assert _apart(picture.read(data).phash, picture.read(saved(grey)).phash) <= 4


def test_what_is_transparent_is_white():
    data = saved(Image.new("RGBA", (40, 30), (0, 0, 0, 0)))
    assert picture.pixels(data, 40).min() == 255


def test_of_an_animation_the_first_frame_is_seen_and_all_are_kept():
    frames = [drawn((60, 40), seed) for seed in range(3)]
    for kind, more in (("GIF", {"comment": b"SECRET"}), ("WEBP", {"lossless": True}), ("PNG", {})):
        rest = {"save_all": True, "append_images": frames[1:], "loop": 0, **more}
        found = picture.read(saved(frames[0], kind, **rest))
        assert found.animated and b"SECRET" not in found.data
        kept = opened(found.data)
        assert (kept.n_frames, kept.info["loop"]) == (3, 0)
        assert _apart(found.phash, picture.read(saved(frames[0])).phash) <= 6
    assert not picture.read(saved(frames[0], "GIF")).animated


def test_alike_pictures_are_near_and_others_are_far():
    known = picture.read(saved(drawn())).phash
    alike = [
        saved(drawn(), "JPEG", quality=30),
        saved(drawn().resize((123, 92))),
        saved(drawn().point(lambda value: value * 0.8)),
        saved(drawn().crop((4, 3, 396, 297))),
    ]
    assert all(_apart(picture.read(data).phash, known) <= 8 for data in alike)
    others = [picture.read(saved(drawn(seed=seed))).phash for seed in range(1, 30)]
    assert min(_apart(other, known) for other in others) > 12


def _apart(one, other):
    return (int(one, 16) ^ int(other, 16)).bit_count()


def test_what_may_leave_is_small_and_bare():
    data = picture.outgoing(picture.read(saved(drawn((2000, 1500)), "JPEG", exif=exif(6))).data)
    image = opened(data)
    assert image.format == "JPEG" and image.size == (384, 512) and dict(image.getexif()) == {}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"hello", "of no known kind"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "is SVG"),
        (b"<svg onload='x()'>", "is SVG"),
        (b"<!DOCTYPE html><html>", "is HTML"),
        (b"%PDF-1.7", "is PDF"),
        (b"\0\0\0\x18ftypheic", "is HEIC"),
        (b"PK\x03\x04", "a ZIP archive"),
        (b"\x89PNG\r\n\x1a\n", "damaged, or no PNG"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(data, what):
    with pytest.raises(InputError, match=what):
        picture.read(data)


def test_paths_and_data_uris_that_are_none_are_refused(tmp_path):
    for source, message in (
        (tmp_path / "none.png", "cannot read the image .*No such file"),
        (tmp_path, "cannot read the image .*directory"),
        ("a\0b", "cannot read the image"),
        ("https://example.org/a.png", "is an address, and nothing is fetched; give a path, its"),
        ("file:///a.png", "nothing is fetched"),
        ("data:image/png,abc", "is not in base64"),
        ("data:image/png;base64,a b", "is no base64"),
        ("data:image/png;base64," + "A" * (picture.MAX_BYTES * 4 // 3 + 8), "at most 33,554,432"),
        (b"\xff\xd8\xff" + bytes(picture.MAX_BYTES), "at most 33,554,432"),
    ):
        with pytest.raises(InputError, match=message):
            picture.read(source)


def test_without_pillow_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(config, "find_spec", lambda _name: None)
    picture._pillow.cache_clear()
    with pytest.raises(ConfigError, match=r'pip install "edgemem-runtime\[images\]"'):
        picture.read(saved(drawn()))


# -- bombs and damage: memory is measured in a process of its own ------------------------------

MEASURED = """
import resource, sys
from pathlib import Path
from edgemem.errors import InputError
from edgemem import images as picture
picture.read(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
refused = 0
for file in sorted(Path(sys.argv[2]).iterdir()):
    try:
        picture.read(file)
    except InputError:
        refused += 1
print(refused, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def measured(folder, files):
    """How many files are refused, and how many MB the process has grown by at its highest."""
    root = str(Path(__file__).parents[1])
    warm = folder / "warm.png"
    warm.write_bytes(saved(drawn()))
    (folder / "files").mkdir()
    for name, data in files.items():
        (folder / "files" / name).write_bytes(data)
    command = [sys.executable, "-W", "error", "-c", MEASURED, str(warm), str(folder / "files")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": root})
    assert done.returncode == 0, done.stderr
    refused, grown = done.stdout.split()
    return int(refused), int(grown) / 1024


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width, height, *more):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(more) + chunk(b"IEND", b"")


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path):
    zeros = zlib.compress(bytes(50_000_000))
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0"
    webp = b"VP8X" + struct.pack("<I", 10) + bytes([16, 0, 0, 0]) + b"\xfe\x3f\0" * 2
    lossless = b"VP8L" + struct.pack("<I", 6) + b"\x2f" + struct.pack("<I", 0x0FFFFFFF) + b"\0"
    webp = b"WEBP" + webp + lossless
    bmp = b"BM" + struct.pack("<IIIIiiHHI", 200, 0, 54, 40, 60_000, 60_000, 1, 24, 0) + bytes(40)
    files = {
        "pixels.png": png(30_000, 30_000, chunk(b"IDAT", zeros)),
        "profile.png": png(4, 4, chunk(b"iCCP", b"x\0\0" + zeros), chunk(b"IDAT", b"")),
        "text.png": png(4, 4, chunk(b"zTXt", b"x\0\0" + zeros), chunk(b"IDAT", b"")),
        "gif.gif": gif + b",\0\0\0\0" + struct.pack("<HH", 65535, 65535) + b"\0\x08\x01\0\0;",
        "webp.webp": b"RIFF" + struct.pack("<I", len(webp)) + webp,
        "bmp.bmp": bmp,
    }
    refused, grown = measured(tmp_path, files)
    assert refused == len(files)
    assert grown < 30


def test_forty_megapixels_take_little_memory_as_a_jpeg_and_less_than_five_bytes_a_pixel_as_a_png(
    tmp_path,
):
    large = Image.new("RGB", (7300, 5480), "teal")
    for kind, most in (("JPEG", 40), ("PNG", 200)):
        folder = tmp_path / kind
        folder.mkdir()
        refused, grown = measured(folder, {"large": saved(large, kind)})
        assert refused == 0 and grown < most
    with pytest.raises(InputError, match=r"8000 × 8000 pixels; at most 50,000,000"):
        picture.read(png(8000, 8000))


def test_five_hundred_damaged_files_do_no_harm(tmp_path):
    """Cut, changed and joined at random, they are refused or read, and never anything else."""
    chosen = random.Random(27)
    whole = [
        saved(drawn((90, 60), seed), kind, **more)
        for seed in range(3)
        for kind in KINDS
        for more in ({"exif": exif(chosen.randrange(9))}, {})
        if kind not in ("GIF", "BMP") or not more
    ]
    files = {}
    for number in range(500):
        data = bytearray(chosen.choice(whole))
        how = number % 4
        if how == 0:
            del data[chosen.randrange(4, len(data)) :]
        if how == 1:
            for _ in range(chosen.randrange(1, 12)):
                data[chosen.randrange(4, min(len(data), 300))] = chosen.randrange(256)
        if how == 2:
            for _ in range(chosen.randrange(1, 50)):
                data[chosen.randrange(len(data))] = chosen.randrange(256)
        if how == 3:
            other = chosen.choice(whole)
            data = data[: chosen.randrange(len(data))] + other[chosen.randrange(len(other)) :]
        files[f"{number:03}"] = bytes(data)
    refused, grown = measured(tmp_path, files)
    assert 150 < refused < 500
    assert grown < 60


def test_base64_of_a_megabyte_is_no_slow_path():
    text = "data:image/png;base64," + base64.b64encode(bytes(1_000_000)).decode()
    with pytest.raises(InputError, match="of no known kind"):
        picture.read(text)
