"""The size of a picture in a data URL, by its header: no pixel is decoded.

Engines open pictures with Pillow and turn them as EXIF says (vLLM 0.32, multimodal/media/image.py);
so Pillow reads them here, too, out of base64 that is decoded as far as it reads. Only of a WebP the
header is read by this module: Pillow decodes nothing of it without the whole file.
"""

from __future__ import annotations

import binascii
import io
import warnings
from typing import IO, Any, cast

from inferway.prompts.media.rule import Size

# vLLM's default for VLLM_MAX_IMAGE_PIXELS, and Pillow's own limit: a larger picture is refused.
MAX_PIXELS = 178_956_970

_FORMATS = ("PNG", "JPEG", "GIF", "AVIF")  # those whose size Pillow tells without their pixels
_ORIENTATION = 0x0112  # EXIF's tag; with 5 to 8 the picture lies on its side
_SIDEWAYS = range(5, 9)
_VP8L, _VP8 = 0x2F, b"\x9d\x01\x2a"  # how the data of WebP's two codecs begin
_MOST_READS = 20_000  # of one file: of 64 MB as libpng writes it there are 8,000
_PIECE = 48 * 1024  # bytes that are decoded at once: other threads have a turn in between


Info = dict[Any, Any]  # as Pillow's `Image.info`


class UnknownPictureError(Exception):
    """The size of a picture cannot be told: it is none, or of a format that is not read here."""


def size_of(url: str) -> Size:
    """Return the size of the picture in a data URL. Raises UnknownPictureError."""
    try:
        file = Base64File(url, data_at(url))
        is_riff = file.read(4) == b"RIFF"
        (width, height), info = _webp(file) if is_riff else _opened(file)
        is_sideways = _orientation(info) in _SIDEWAYS
    except UnknownPictureError:
        raise
    except Exception as e:  # whatever a client's bytes make of a reader of files
        raise UnknownPictureError(f"no picture: {type(e).__name__}") from e
    if not 0 < width * height <= MAX_PIXELS:
        raise UnknownPictureError(f"{width} x {height} pixels are refused by engines")
    return Size(height, width) if is_sideways else Size(width, height)


def data_at(url: str) -> int:
    """Return where the base64 of a data URL begins (vLLM 0.32, multimodal/media/connector.py)."""
    comma = url.find(",")
    if comma < 0 or not url[:comma].endswith(";base64"):
        raise UnknownPictureError("a data URL without base64")
    return comma + 1


class Base64File(io.RawIOBase):
    """A file whose bytes are the base64 that `text` has from `start` on; nothing is decoded before
    it is read. Raises binascii.Error for text that is no base64."""

    def __init__(self, text: str, start: int) -> None:
        self._text, self._start = text, start
        chars = len(text) - start
        padding = 2 if text.endswith("==") else 1 if text.endswith("=") else 0
        if chars % 4:
            raise binascii.Error("base64 of a broken length")
        self._length = chars // 4 * 3 - padding
        self._at = 0
        self._reads = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = (0, self._at, self._length)[whence]
        self._at = max(base + offset, 0)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise UnknownPictureError(f"a file of more than {_MOST_READS} parts")
        end = self._length if size is None or size < 0 else min(self._at + size, self._length)
        pieces = []
        while self._at < end:
            until = min(end, self._at - self._at % 3 + _PIECE)
            first, last = self._at // 3 * 4, -(-until // 3) * 4
            text = self._text[self._start + first : self._start + last]
            within = self._at % 3
            pieces.append(binascii.a2b_base64(text, strict_mode=True)[within:][: until - self._at])
            self._at = until
        return b"".join(pieces)


def _opened(file: Base64File) -> tuple[tuple[int, int], Info]:
    """Return the size that Pillow finds, and what the file says of itself."""
    from PIL import Image

    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = Image.open(cast(IO[bytes], file), formats=_FORMATS)
    if image.format == "PNG" and _has_words_behind_its_pixels(file):
        raise UnknownPictureError("a PNG with text or EXIF behind its pixels")
    return image.size, image.info


def _has_words_behind_its_pixels(file: Base64File) -> bool:
    """Return whether a PNG has chunks, after its pixels, that could turn it."""
    at, is_behind = 8, False
    while True:
        file.seek(at)
        head = file.read(8)
        kind = head[4:]
        if len(head) < 8 or kind == b"IEND":
            return False
        if is_behind and kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            return True
        is_behind = is_behind or kind == b"IDAT"
        at += 12 + int.from_bytes(head[:4], "big")


def _webp(file: Base64File) -> tuple[tuple[int, int], Info]:
    """Return the size of a WebP, and its EXIF and XMP (the format's specification:
    developers.google.com/speed/webp/docs/riff_container)."""
    file.seek(8)
    head = file.read(22)
    kind, data = head[4:8], head[12:]
    if head[:4] != b"WEBP" or len(data) < 10:
        raise UnknownPictureError("a RIFF file that is no WebP")
    info: Info = {}
    if kind == b"VP8X":
        for name, key in ((b"EXIF", "exif"), (b"XMP ", "xmp")):
            words = _riff_chunk(file, name)
            if words is not None:
                info[key] = words
        size = 1 + int.from_bytes(data[4:7], "little"), 1 + int.from_bytes(data[7:10], "little")
    elif kind == b"VP8L" and data[0] == _VP8L:
        bits = int.from_bytes(data[1:5], "little")
        size = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 " and data[3:6] == _VP8:
        width, height = data[6:8], data[8:10]
        size = (
            int.from_bytes(width, "little") & 0x3FFF,
            int.from_bytes(height, "little") & 0x3FFF,
        )
    else:
        raise UnknownPictureError("a WebP without a header")
    return size, info


def _riff_chunk(file: Base64File, name: bytes) -> bytes | None:
    """Return the first chunk of a name in a RIFF file."""
    at = 12
    while True:
        file.seek(at)
        head = file.read(8)
        if len(head) < 8:
            return None
        length = int.from_bytes(head[4:], "little")
        if head[:4] == name:
            return file.read(length)
        at += 8 + length + length % 2


def _orientation(info: Info) -> int:
    """Return how EXIF or XMP says that a picture is to be turned; 1 if not at all."""
    from PIL import Image

    picture = Image.Image()  # a PNG's own `getexif` decodes its pixels first
    picture.info = info
    return int(picture.getexif().get(_ORIENTATION, 1))
