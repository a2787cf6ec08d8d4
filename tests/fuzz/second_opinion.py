"""h11 reads the same bytes: another parser, by other people, in another language."""

from __future__ import annotations

from dataclasses import dataclass, field

import h11

MAX_EVENT_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Message:
    """A request (`start` is its method) or an answer (its status), with its body."""

    start: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for given, value in self.headers if given == name]


@dataclass(slots=True)
class Reading:
    """`end`: "" if all was read to the end of a message, "part" if the last is not complete,
    "closed" if it asked for the end, else what h11 complains of."""

    messages: list[Message] = field(default_factory=list)
    end: str = ""


def read_requests(data: bytes) -> Reading:
    """As a server does that answers each with 200."""
    reading = Reading()
    connection = h11.Connection(h11.SERVER, MAX_EVENT_BYTES)
    connection.receive_data(data)
    while True:
        message, end = _next(connection)
        if message is None:
            reading.end = end
            return reading
        reading.messages.append(message)
        length = b"0" if message.start != b"CONNECT" else b"1"
        answer = h11.Response(status_code=200, headers=[(b"content-length", length)])
        connection.send(answer)
        if message.start == b"CONNECT":
            reading.end = "closed"
            return reading
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            reading.end = "closed"
            return reading
        connection.start_next_cycle()
        if not connection.trailing_data[0]:
            return reading


def read_answer(data: bytes, method: bytes, *, closed: bool) -> tuple[Message | None, str, bytes]:
    """As a client does: the answer, else what is wrong, and what came after it."""
    connection = h11.Connection(h11.CLIENT, MAX_EVENT_BYTES)
    connection.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"gw")]))
    connection.send(h11.EndOfMessage())
    if data:
        connection.receive_data(data)
    if closed:
        connection.receive_data(b"")
    message, end = _next(connection)
    return message, end, connection.trailing_data[0]


def _next(connection: h11.Connection) -> tuple[Message | None, str]:
    head: h11.Request | h11.Response | None = None
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request | h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return _message(head, body), ""
            elif event is h11.NEED_DATA:
                return None, "part" if head is not None or connection.trailing_data[0] else ""
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return None, "closed"
    except h11.RemoteProtocolError as e:
        return None, str(e) or "refused"


def _message(head: h11.Request | h11.Response, body: bytes) -> Message:
    headers = tuple((bytes(name), bytes(value)) for name, value in head.headers)
    if isinstance(head, h11.Request):
        return Message(bytes(head.method), bytes(head.target), headers, body)
    return Message(b"%d" % head.status_code, b"", headers, body)
