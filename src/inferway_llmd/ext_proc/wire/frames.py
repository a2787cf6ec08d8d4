"""HTTP/2's frames (RFC 9113) and gRPC's frame of a message, as bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Final
from urllib.parse import quote

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
MAX_FRAME_BYTES: Final = 16_384  # what we take, and what a client takes until it says otherwise
PRIORITY_BYTES: Final = 5
FIRST_WINDOW: Final = 65_535
MAX_WINDOW: Final = (1 << 31) - 1

# Kinds of frames.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = range(5)
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(5, 10)

# Flags.
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, HAS_PRIORITY = 0x4, 0x8, 0x20

# Settings.
_MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, _MAX_HEADER_LIST_SIZE = 3, 4, 5, 6


class Fault(IntEnum):
    """The reason why a stream or a connection is closed."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The client does not keep to HTTP/2; it is told so, and the connection is closed."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


class Status(IntEnum):
    """gRPC's, of those that we say."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


_HEAD = Struct(">IBI")  # length and kind, flags, stream
_MESSAGE = Struct(">IBIBI")  # the same, whether it is compressed, its length
_SETTING = Struct(">HI")
_FOUR = Struct(">I")
MESSAGE_HEAD_BYTES: Final = 5


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def message_frame(stream: int, message: bytes) -> bytes:
    """Return a DATA frame with a whole message; for messages that fit into one."""
    length = len(message)
    return _MESSAGE.pack((length + MESSAGE_HEAD_BYTES) << 8 | DATA, 0, stream, 0, length) + message


def message_head(length: int) -> bytes:
    """Return the five bytes that precede a gRPC message of this length."""
    return b"\0" + _FOUR.pack(length)


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _FOUR.pack(more))


def reset(stream: int, fault: Fault) -> bytes:
    return frame(RST_STREAM, 0, stream, _FOUR.pack(fault))


def goaway(last_stream: int, fault: Fault, words: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _FOUR.pack(last_stream) + _FOUR.pack(fault) + words.encode())


def settings(window: int, streams: int, header_bytes: int) -> bytes:
    """Return our SETTINGS: how much a stream may send before it is given more room, how many
    streams there may be at a time, and how large their headers may be."""
    said = {
        _MAX_CONCURRENT_STREAMS: streams,
        INITIAL_WINDOW_SIZE: window,
        _MAX_HEADER_LIST_SIZE: header_bytes,
    }
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in said.items()))


def settings_in(payload: bytes) -> Mapping[int, int]:
    """Return the settings of a SETTINGS frame; of those that stand twice the last one counts.
    Raises ConnectionFault."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "settings of a wrong size")
    said = dict(_SETTING.iter_unpack(payload))
    if not MAX_FRAME_BYTES <= said.get(MAX_FRAME_SIZE, MAX_FRAME_BYTES) < 1 << 24:
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "frames of a size that may not be")
    return said


def check_of_connection(stream: int, what: str) -> None:
    """Raises ConnectionFault for `what` is said of a stream."""
    if stream:
        raise ConnectionFault(Fault.PROTOCOL_ERROR, f"{what} of stream {stream}")


def number_in(payload: bytes) -> int:
    """The 31 bits of its first four bytes; the highest is reserved."""
    return int.from_bytes(payload[:4]) & 0x7FFFFFFF


def unpadded(payload: bytes) -> bytes:
    """Return the payload of a frame without its padding. Raises ConnectionFault."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Fault.PROTOCOL_ERROR, "more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def header_block(flags: int, payload: bytes) -> bytes:
    """Return the part of a HEADERS frame between padding and priority. Raises ConnectionFault."""
    if flags & PADDED:
        payload = unpadded(payload)
    if flags & HAS_PRIORITY:
        if len(payload) < PRIORITY_BYTES:
            raise ConnectionFault(Fault.FRAME_SIZE_ERROR, "a priority that is cut off")
        payload = payload[PRIORITY_BYTES:]
    return payload


def check_size(payload: bytes, size: int) -> None:
    """Check the length of a frame's payload. Raises ConnectionFault."""
    if len(payload) != size:
        raise ConnectionFault(Fault.FRAME_SIZE_ERROR, f"{len(payload)} bytes instead of {size}")


def _literal(name: bytes, value: bytes) -> bytes:
    """A header, in HPACK, that changes no table (RFC 7541, 6.2.2); each shorter than 127 bytes."""
    return b"\0%c%b%c%b" % (len(name), name, len(value), value)


_STATUS_200 = b"\x88"  # of the static table
_HEAD_BLOCK = _STATUS_200 + _literal(b"content-type", b"application/grpc")
_OK_BLOCK = _literal(b"grpc-status", b"0")
_MAX_WORDS = 120
NOT_GRPC: Final = b"\x08\x03415"  # `:status: 415`, by its name in the static table


def response_head(stream: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, _HEAD_BLOCK)


def response_end(stream: int, status: Status, words: str, *, begun: bool) -> bytes:
    """Return the frame with the trailers. `begun`: the head has been sent."""
    if status is Status.OK:
        block = _OK_BLOCK
    else:
        said = quote(words, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~\"")[:_MAX_WORDS]
        block = _literal(b"grpc-status", b"%d" % status) + _literal(b"grpc-message", said.encode())
    if not begun:
        block = _HEAD_BLOCK + block
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


_TLS_HANDSHAKE = b"\x16\x03"


def not_http2(data: bytes) -> str:
    """Return words about a client that has sent no preface of HTTP/2."""
    if data.startswith(_TLS_HANDSHAKE):
        return "it speaks TLS, and --secure-serving=false says that nobody does"
    return "it speaks no HTTP/2, or not at once; gRPC without TLS does"
