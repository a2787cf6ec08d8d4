"""A client of HTTP/2 that says what it likes, and the connection it speaks to, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder, Encoder

from inferway_llmd.ext_proc.wire.call import Call
from inferway_llmd.ext_proc.wire.connection import Connection, Patience
from inferway_llmd.ext_proc.wire.frames import (
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    message_head,
)

FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/Service/Method"),
    (":authority", "picker"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


class Wire(asyncio.Transport):
    """What the connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.aborted = self.paused = False
        self.buffered = 0

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.buffered


@dataclass
class Called:
    """One call, and what was told of it."""

    call: Call
    messages: list[bytes] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def on_message(self, message: bytes) -> None:
        self.messages.append(message)

    def on_end(self) -> None:
        self.told.append("end")

    def on_gone(self) -> None:
        self.told.append("gone")


class Peer:
    """A client, and the connection it speaks to."""

    def __init__(self, max_message: int = 1000, patience: Patience | None = None) -> None:
        self.wire = Wire()
        self.calls: list[Called] = []
        self.closed = 0
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.connection = Connection(
            *({b"/Service/Method": self._opened}, max_message, lambda _: None, self._lost),
            *(() if patience is None else (patience,)),
        )
        self.connection.connection_made(self.wire)
        self.say(PREFACE + frame(SETTINGS, 0, 0))
        self.heard()

    def _opened(self, call: Call) -> Called:
        self.calls.append(Called(call))
        return self.calls[-1]

    def _lost(self, _: Connection) -> None:
        self.closed += 1

    def say(self, data: bytes) -> None:
        self.connection.data_received(data)

    async def shout(self, data: bytes) -> None:
        """Says more than is read in a turn of the loop, and waits until it has been read."""
        self.say(data)
        while self.wire.paused and not self.wire.closed:
            await asyncio.sleep(0)

    def open(self, stream: int = 1, *, flags: int = 0, **changed: str) -> Called:
        self.say(frame(HEADERS, END_HEADERS | flags, stream, self.block(**changed)))
        return self.calls[-1]

    def block(self, **changed: str) -> bytes:
        fields = {**dict(FIELDS), **{name.replace("_", ":"): v for name, v in changed.items()}}
        return bytes(self.encoder.encode(list(fields.items())))

    def heard(self) -> list[Frame]:
        """Since the last time."""
        data = bytes(self.wire.written)
        self.wire.written.clear()
        return list(_frames(data))

    def fields(self, heard: Frame) -> dict[str, str]:
        return {str(name): str(value) for name, value in self.decoder.decode(heard.payload)}


def _frames(data: bytes) -> Iterator[Frame]:
    while data:
        length = int.from_bytes(data[:3])
        yield Frame(data[3], data[4], int.from_bytes(data[5:9]), data[9 : 9 + length])
        data = data[9 + length :]


def said(message: bytes) -> bytes:
    return message_head(len(message)) + message
