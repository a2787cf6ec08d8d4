"""The size of a picture is what an engine sees when it opens it, and no pixel is decoded for it."""

from __future__ import annotations

import base64
import io
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from operator import methodcaller

import pytest
from PIL import Image, ImageOps

from inferway.prompts.media.picture import Base64File, UnknownPictureError, size_of
from inferway.prompts.media.rule import Size

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "AVIF")
ORIENTATION = 0x0112


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def picture(
    form: str, width: int, height: int, orientation: int | None = None, mode: str = "RGB"
) -> bytes:
    image = Image.new(mode, (width, height))
    options = {}
    if orientation is not None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def as_engines_see_it(data: bytes) -> Size:
    """vLLM 0.32, multimodal/image.py: opened, and turned as EXIF says."""
    return Size(*ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("form", FORMATS)
def test_sizes_of_drawn_pictures_are_those_that_engines_see(form: str) -> None:
    draw = random.Random(form)
    for _ in range(40):
        width, height = draw.randint(1, 700), draw.randint(1, 700)
        turned = None if form == "GIF" else draw.choice([None, *range(1, 9)])
        data = picture(form, width, height, turned)

        assert size_of(data_url(data)) == as_engines_see_it(data), (width, height, turned)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(picture("WEBP", 60, 40, mode="RGBA"), id="webp-with-alpha"),
        pytest.param(picture("PNG", 60, 40, mode="P"), id="png-with-palette"),
        pytest.param(picture("JPEG", 60, 40, mode="L"), id="grey-jpeg"),
        pytest.param(picture("JPEG", 60, 40, mode="CMYK"), id="cmyk-jpeg"),
    ],
)
def test_sizes_do_not_depend_on_colours(data: bytes) -> None:
    assert size_of(data_url(data)) == Size(60, 40)


def test_lossless_and_animated_webps_have_the_size_of_their_canvas() -> None:
    frames = [Image.new("RGB", (50, 30), colour) for colour in ("red", "blue", "green")]
    lossless, animated = io.BytesIO(), io.BytesIO()
    frames[0].save(lossless, "WEBP", lossless=True)
    frames[0].save(animated, "WEBP", save_all=True, append_images=frames[1:])

    assert size_of(data_url(lossless.getvalue())) == Size(50, 30)
    assert size_of(data_url(animated.getvalue())) == Size(50, 30)


def test_orientation_in_xmp_counts_where_there_is_no_exif() -> None:
    out = io.BytesIO()
    Image.new("RGB", (50, 30)).save(out, "WEBP", xmp=b'<x tiff:Orientation="6"/>')

    assert size_of(data_url(out.getvalue())) == as_engines_see_it(out.getvalue()) == Size(30, 50)


def _turned_behind_its_pixels() -> bytes:
    data = picture("PNG", 60, 40)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    end = data.index(b"IEND") - 4
    return data[:end] + png_chunk(b"eXIf", exif.tobytes()[6:]) + data[end:]


def _many_parts() -> bytes:
    data = picture("PNG", 60, 40)
    return data[:33] + png_chunk(b"prVt", b"") * 30_000 + data[33:]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GIF", id="a-start"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="svg"),
        pytest.param(b"RIFF\x00\x00\x00\x00WEBP", id="webp-without-data"),
        pytest.param(b"RIFF\x00\x00\x00\x00WAVEfmt " + b"\0" * 20, id="wav"),
        pytest.param(picture("PNG", 60, 40)[:20], id="png-cut-in-its-header"),
        pytest.param(picture("BMP", 60, 40), id="a-format-not-read-here"),
        pytest.param(_turned_behind_its_pixels(), id="turned-behind-its-pixels"),
        pytest.param(_many_parts(), id="of-many-parts"),
        pytest.param(
            b"\x89PNG\r\n\x1a\n"
            + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
            + png_chunk(b"IDAT", zlib.compress(b"\0" * 100)),
            id="a-bomb-by-its-header",
        ),
        pytest.param(
            b"RIFF\x00\x01\x00\x00WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6 + b"\0" * 100,
            id="a-bomb-of-webp",
        ),
    ],
)
def test_size_of_what_no_engine_would_see_so_is_unknown(data: bytes) -> None:
    with pytest.raises(UnknownPictureError):
        size_of(data_url(data))


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64," + base64.b64encode(picture("PNG", 6, 4)).decode()[:-3],
        "data:image/png;base64,@@@@" + base64.b64encode(picture("PNG", 6, 4)).decode(),
        "data:image/png;base64,\N{SNOWMAN}AAA",
        "data:image/png;base64",
        "data:image/png,abcd",
        "data:,",
    ],
)
def test_size_is_unknown_where_the_base64_is_none(url: str) -> None:
    with pytest.raises(UnknownPictureError):
        size_of(url)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_little_of_a_large_picture_is_decoded(form: str) -> None:
    noise = random.Random(1).randbytes(900 * 700 * 3)
    out = io.BytesIO()
    Image.frombytes("RGB", (900, 700), noise).save(out, form)
    url = data_url(out.getvalue())
    size_of(url)  # Pillow is loaded

    tracemalloc.start()
    size_of(url)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(url) > 250_000
    assert peak < 200_000


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 50_000, 200_001])
def test_file_of_base64_reads_as_the_bytes_do(length: int) -> None:
    data = random.Random(length).randbytes(length)
    text = "x," + base64.b64encode(data).decode()
    ours, theirs = Base64File(text, 2), io.BytesIO(data)
    draw = random.Random(1)
    steps: list[Callable[[object], object]] = []
    for _ in range(50):
        at, size = draw.randint(0, length + 3), draw.randint(-1, length)
        steps += [methodcaller("seek", at), methodcaller("read", size), methodcaller("tell")]

    assert [step(ours) for step in steps] == [step(theirs) for step in steps]
