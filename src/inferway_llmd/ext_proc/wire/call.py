"""One call: gRPC's messages over a stream's frames, both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from inferway_llmd.ext_proc.wire.frames import (
    DATA,
    MESSAGE_HEAD_BYTES,
    Fault,
    Status,
    frame,
    message_frame,
    message_head,
    reset,
    response_end,
    response_head,
    window_update,
)
from inferway_llmd.ext_proc.wire.outlet import Outlet

WINDOW_BYTES = 1 << 20  # that a client may send before it is told that there is room for more
_TELL_BYTES = WINDOW_BYTES // 2
_BACKLOG_BYTES = 1 << 20  # of answers that the client does not take: then it may send no more


class CallReceiver(Protocol):
    """The receiver of a call: the handler of one stream."""

    def on_message(self, message: bytes) -> None: ...
    def on_end(self) -> None:
        """The client says no more."""

    def on_gone(self) -> None:
        """Note that the client wants no answer, cannot be reached, or has sent bytes that cannot be
        read. It is not called after `finish`."""


class _Nobody:
    """The listener of a call that is over."""

    def on_message(self, message: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_gone(self) -> None: ...


_NOBODY = _Nobody()


class CallTransport(Protocol):
    """The connection that a call is on."""

    max_message: int

    def overrun(self, call: Call) -> None:
        """The client has sent more than it was given room for."""

    def over(self, call: Call) -> None: ...


class Call:
    """`send` and `finish` answer. What cannot be sent yet is kept, and the client may send no more
    before it has taken that. `hold` and `release`: meanwhile it may send no more than WINDOW_BYTES.
    """

    __slots__ = (
        "_end",
        "_held",
        "_kept",
        "_kept_bytes",
        "_link",
        "_outlet",
        "_pieces",
        "_untold",
        "_wanted",
        "begun",
        "client_ended",
        "handler",
        "stream",
        "window",
    )

    handler: CallReceiver

    def __init__(self, link: CallTransport, outlet: Outlet, stream: int, window: int) -> None:
        self.stream = stream
        self.window = window  # bytes that the client still takes
        self.client_ended = False
        self._link = link
        self._outlet = outlet
        self.begun = False  # the head has been sent
        self._held = False
        self._kept: deque[bytes | memoryview] = deque()  # of answers, to be sent
        self._kept_bytes = 0
        self._end: tuple[Status, str] | None = None  # to be said behind them
        self._pieces = bytearray()  # of a message that has not come wholly
        self._wanted = MESSAGE_HEAD_BYTES  # bytes that must have come for more to be known
        self._untold = 0  # bytes that came since the client was told of room

    # ----------------------------------------------------------------------------- to the client

    def send(self, message: bytes) -> None:
        """Send a message. Nothing is sent any more once the call is over."""
        if self._end is not None:
            return
        outlet, size = self._outlet, len(message) + MESSAGE_HEAD_BYTES
        if not self.begun:
            self.begun = True
            outlet.write(response_head(self.stream))
        if (
            not self._kept
            and size <= self.window
            and size <= outlet.window
            and size <= outlet.max_frame
            and not outlet.paused
        ):
            self.window -= size
            outlet.window -= size
            outlet.write(message_frame(self.stream, message))
            return
        self._kept += (message_head(len(message)), message)
        self._kept_bytes += size
        self.pump()

    def finish(self, status: Status = Status.OK, words: str = "") -> None:
        """End the call behind all that was sent. Only the first one counts."""
        if self._end is None:
            self._end = (status, words)
            if not self._kept:
                self._say_end()

    def pump(self) -> None:
        """Sends of what is kept as much as there is room for; also called when the client has said
        that there is more room for this call."""
        outlet, kept = self._outlet, self._kept
        while kept:
            if self.window <= 0:
                return
            if outlet.paused or outlet.window <= 0:
                outlet.wait(self)
                return
            payload = self._taken(min(self.window, outlet.window, outlet.max_frame))
            self.window -= len(payload)
            outlet.window -= len(payload)
            outlet.write(frame(DATA, 0, self.stream, payload))
        if self._end is not None:
            self._say_end()
        else:
            self._tell_room()

    def _taken(self, room: int) -> bytes:
        kept, taken = self._kept, []
        while kept and room:
            piece = kept.popleft()
            if len(piece) > room:
                whole = memoryview(piece)
                kept.appendleft(whole[room:])
                piece = whole[:room]
            room -= len(piece)
            self._kept_bytes -= len(piece)
            taken.append(piece)
        return b"".join(taken)

    def _say_end(self) -> None:
        assert self._end is not None
        outlet = self._outlet
        outlet.write(response_end(self.stream, *self._end, begun=self.begun))
        if not self.client_ended:  # it need not say the rest (RFC 9113, 8.1)
            outlet.write(reset(self.stream, Fault.NO_ERROR))
        self._over()
        self._link.over(self)

    def _over(self) -> None:
        """The handler has the call, too: the two would wait for the garbage collector."""
        self.handler = _NOBODY

    # --------------------------------------------------------------------------- from the client

    def received(self, payload: bytes, size: int) -> None:
        """Take the payload of a DATA frame, which has taken `size` bytes of the window."""
        self._untold += size
        if self._untold >= _TELL_BYTES:
            if self._untold > WINDOW_BYTES:
                self._link.overrun(self)
                return
            self._tell_room()
        if self._end is not None or not payload:
            return
        if not self._pieces and len(payload) >= MESSAGE_HEAD_BYTES and not payload[0]:
            length = int.from_bytes(payload[1:MESSAGE_HEAD_BYTES])
            if length + MESSAGE_HEAD_BYTES == len(payload):  # as nearly all are
                if length > self._link.max_message:
                    self._refuse_length(length)
                else:
                    self.handler.on_message(payload[MESSAGE_HEAD_BYTES:])
                return
        self._pieces += payload
        if len(self._pieces) >= self._wanted:
            self._cut()

    def _cut(self) -> None:
        """Whole messages, of the pieces that have come."""
        came, at = bytes(self._pieces), 0
        while self._end is None:
            start = at + MESSAGE_HEAD_BYTES
            if len(came) < start:
                self._wanted = MESSAGE_HEAD_BYTES
                break
            length = int.from_bytes(came[at + 1 : start])
            if came[at]:
                self._fail(Status.UNIMPLEMENTED, "compressed messages are not read")
                return
            if length > self._link.max_message:
                self._refuse_length(length)
                return
            if len(came) < start + length:
                self._wanted = MESSAGE_HEAD_BYTES + length
                break
            at = start + length
            self.handler.on_message(came[start:at])
        self._pieces = bytearray(came[at:])

    def _refuse_length(self, length: int) -> None:
        self._fail(
            Status.RESOURCE_EXHAUSTED,
            f"a message of {length} bytes; at most {self._link.max_message} are taken",
        )

    def _fail(self, status: Status, words: str) -> None:
        self._pieces.clear()
        handler = self.handler
        self.finish(status, words)
        handler.on_gone()

    def hold(self) -> None:
        """Give the client no further room, while the handler keeps what has come."""
        self._held = True

    def release(self) -> None:
        self._held = False
        self._tell_room()

    def _tell_room(self) -> None:
        if self._untold < _TELL_BYTES or self._held or self._kept_bytes >= _BACKLOG_BYTES:
            return
        if not self.client_ended:
            self._outlet.write(window_update(self.stream, self._untold))
        self._untold = 0

    def ended(self) -> None:
        """The client has said its last frame."""
        self.client_ended = True
        if self._end is not None:
            return
        if self._pieces:
            self._fail(Status.INVALID_ARGUMENT, "a message was cut off")
        else:
            self.handler.on_end()

    def gone(self) -> None:
        """Drop what is kept: the client takes no more."""
        self._kept.clear()
        if self._end is None:
            self._end = (Status.UNKNOWN, "")
            self.handler.on_gone()
        self._over()


Open = Callable[[Call], CallReceiver]
