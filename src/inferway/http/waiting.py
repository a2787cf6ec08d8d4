"""A client whose request waits at the gateway, whatever for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inferway.http.ends import BodySource


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
