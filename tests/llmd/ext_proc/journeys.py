"""A double of routing.journey.Journey, as the exchange sees it."""

from __future__ import annotations

from inferway.model import Headers, Target
from inferway.routing.limits.request_quarantine import EngineLosses


class Untouched:
    """A journey of which nothing is known, and whose answer passes as it comes."""

    changes_length = False
    is_moved = False
    is_cut_off = False

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.losses = EngineLosses()

    def attempt(self, target: Target) -> Headers:
        return target.endpoint.headers

    def pass_encoded(self) -> None:
        self.is_encoded = True

    def give_up(self) -> bytes:
        return b""

    def on_head(self, status: int) -> Headers:  # noqa: ARG002
        return ()

    def on_chunk(self, chunk: bytes) -> bytes:
        return chunk

    def on_end(self) -> bytes:
        return b""

    def close(self, outcome: str) -> None: ...
