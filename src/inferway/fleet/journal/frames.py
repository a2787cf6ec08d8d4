"""The bytes of a journal's files: frames, each proving that it follows on the one before. Pure.

    file  = frame with the header, frames
    frame = length, 4 bytes | checksum, 8 bytes | payload         (little endian)

A frame's checksum is xxh3_64 of its payload, seeded with the checksum before it: through a file,
and from the end of one file to the header of the next. So what can be read is a beginning of what
was written, without a hole, whatever a crash has left of the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import xxhash

MAX_FRAME_BYTES = 64 * 1024 * 1024  # an engine's largest batch is 16 MiB

_HEAD = struct.Struct("<IQ")


def frame(payload: bytes, chain: int) -> tuple[bytes, int]:
    """The frame's bytes, and the checksum that the next one follows on."""
    checksum: int = xxhash.xxh3_64_intdigest(payload, chain)
    return _HEAD.pack(len(payload), checksum) + payload, checksum


class FrameReader:
    """Bytes as they come, in pieces of any size -> payloads. Stops for good where a frame does
    not follow on."""

    def __init__(self, chain: int) -> None:
        self.chain = chain  # of the last good frame
        self.num_good_bytes = 0  # up to its end
        self._rest = b""
        self._broken = False

    @property
    def is_whole(self) -> bool:
        """Whether all bytes so far were good frames."""
        return not self._broken and not self._rest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that are complete now; take them all before feeding more."""
        data = self._rest + data if self._rest else data
        start = 0
        while not self._broken and len(data) - start >= _HEAD.size:
            length, checksum = _HEAD.unpack_from(data, start)
            end = start + _HEAD.size + length
            if length > MAX_FRAME_BYTES:
                self._broken = True
                break
            if end > len(data):
                break
            payload = data[start + _HEAD.size : end]
            if xxhash.xxh3_64_intdigest(payload, self.chain) != checksum:
                self._broken = True
                break
            self.chain, self.num_good_bytes = checksum, self.num_good_bytes + end - start
            start = end
            yield payload
        self._rest = data[start:]
