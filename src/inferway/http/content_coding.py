"""A client's compressed body -> the body (RFC 9110 section 8.4). Codex compresses with zstd.

A body of a few bytes may stand for gigabytes, so that it is decoded piece by piece, and no further
than to the limit of bodies. What takes longer than a turn of the event loop may is decoded in a
thread: these libraries release the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Callable, Iterator, Mapping

from inferway.errors import BodyTooLargeError, InvalidRequestError, UnsupportedCodingError

_PIECE_BYTES = 128 * 1024
_BYTES_ON_LOOP = 256 * 1024  # decoded; a millisecond at most
_COMPRESSED_BYTES_ON_LOOP = 64 * 1024
_AT_ONCE = 2  # bodies that are decoded in threads, each of which may grow to the limit
_MAX_WINDOW_BYTES = 8 << 20  # of zstd; RFC 8878 has decoders support it


class _EndsEarlyError(Exception):
    pass


class _GoesOnError(Exception):
    pass


class BodyDecoder:
    """Decodes the bodies of one server's requests. Use it from one event loop."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(_AT_ONCE)

    async def decoded(self, body: bytes, codings: bytes, limit: int) -> bytes:
        """Return the body to which `codings`, the value of Content-Encoding, was applied. Raises
        UnsupportedCodingError for any but one of CODINGS, BodyTooLargeError if the body has more
        than `limit` bytes, InvalidRequestError if it is broken."""
        name = codings.decode("latin-1").strip().lower()
        if name in ("", "identity"):
            return body
        pieces = CODINGS.get(name.removeprefix("x-"))  # x-gzip is gzip (RFC 9110 section 8.4.1.3)
        if pieces is None:
            raise UnsupportedCodingError(
                f"content-encoding {name[:40]!r}: expected one of {ACCEPTED}; or have the client"
                " send the body uncompressed"
            )
        decoding = _Decoding(name, pieces(body), limit)
        if len(body) <= _COMPRESSED_BYTES_ON_LOOP and decoding.go_on(_BYTES_ON_LOOP):
            return decoding.whole()
        async with self._threads:
            await asyncio.to_thread(decoding.go_on)
        return decoding.whole()


class _Decoding:
    """A body that is being decoded, in this thread or another."""

    def __init__(self, name: str, pieces: Iterator[bytes], limit: int) -> None:
        self._name = name
        self._pieces = pieces
        self._limit = limit
        self._done: list[bytes] = []
        self._size = 0

    def go_on(self, most: int | None = None) -> bool:
        """Decode up to `most` bytes more, by default all; return whether the body is whole."""
        end = self._limit if most is None else min(self._limit, self._size + most)
        try:
            for piece in self._pieces:
                self._done.append(piece)
                self._size += len(piece)
                if self._size > self._limit:
                    raise BodyTooLargeError(
                        f"body: over the limit of {self._limit} bytes (limits.body_bytes) when it"
                        f" is decoded from {self._name}"
                    )
                if self._size > end:
                    return False
        except _EndsEarlyError:
            raise self._broken("it ends too early") from None
        except _GoesOnError:
            raise self._broken("bytes follow its end") from None
        except Exception as e:
            if isinstance(e, BodyTooLargeError):
                raise
            raise self._broken(str(e)) from None
        return True

    def whole(self) -> bytes:
        """Return the body."""
        return b"".join(self._done)

    def _broken(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"body: not valid {self._name}: {why}", param="body")


def _inflated(body: bytes, wbits: int) -> Iterator[bytes]:
    decoder = zlib.decompressobj(wbits)
    rest = body
    while not decoder.eof:
        piece = decoder.decompress(rest, _PIECE_BYTES)
        rest = decoder.unconsumed_tail
        if piece:
            yield piece
        elif not rest and not decoder.eof:
            raise _EndsEarlyError
    if decoder.unused_data:  # of many members, each would cost another copy of the rest
        raise _GoesOnError


def _gzip(body: bytes) -> Iterator[bytes]:
    return _inflated(body, 16 + zlib.MAX_WBITS)


def _deflate(body: bytes) -> Iterator[bytes]:
    """With zlib's frame, as RFC 9110 has it, or without, as many clients send it."""
    framed = len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0
    return _inflated(body, zlib.MAX_WBITS if framed else -zlib.MAX_WBITS)


def _zstd(body: bytes) -> Iterator[bytes]:
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    reader = decoder.stream_reader(io.BytesIO(body), read_across_frames=False)
    size = 0
    while piece := reader.read(_PIECE_BYTES):
        size += len(piece)
        yield piece
    told = zstandard.frame_content_size(body)
    if told not in (-1, size):
        raise _EndsEarlyError


def _brotli(body: bytes) -> Iterator[bytes]:
    import brotli

    decoder = brotli.Decompressor()
    piece = decoder.process(body, output_buffer_limit=_PIECE_BYTES)
    while piece or not decoder.is_finished():
        yield piece
        if decoder.is_finished():
            return
        if decoder.can_accept_more_data():
            raise _EndsEarlyError
        piece = decoder.process(b"", output_buffer_limit=_PIECE_BYTES)


CODINGS: Mapping[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
ACCEPTED = ", ".join(CODINGS)
