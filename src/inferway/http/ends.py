"""The receiver of an answer, and what produces its body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inferway.errors import InferwayError
from inferway.model import Headers


class BodySource(Protocol):
    """Produces an answer's body after the handler has returned."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def client_gone(self) -> None: ...


class Client(Protocol):
    """The receiver of the answer (responder.Responder, or an object in front of it)."""

    @property
    def started(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def can_say_more(self) -> bool: ...
    @property
    def is_kept_alive(self) -> bool: ...
    def attach(self, source: BodySource) -> None: ...
    def start(self, status: int, headers: Headers, length: int | None = None) -> None: ...
    def flush(self) -> None: ...
    def write(self, chunk: bytes) -> None: ...
    def end(self, chunk: bytes = b"") -> None: ...
    def send_error(self, error: InferwayError) -> None: ...
    def abort(self) -> None: ...


class WaitingClient(Protocol):
    """The client of a request that waits (responder.Responder)."""

    @property
    def ended(self) -> bool: ...
    def attach(self, source: BodySource) -> None: ...


class InQueue:
    """The source of an answer whose request has no engine yet. `withdraw` is called if its client
    goes."""

    __slots__ = ("_withdraw",)

    def __init__(self, withdraw: Callable[[], None]) -> None:
        self._withdraw = withdraw

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def client_gone(self) -> None:
        self._withdraw()
