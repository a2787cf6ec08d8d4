"""One request, measured."""

from __future__ import annotations

import msgspec


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Times are seconds since the stage began; None where there is nothing to tell.

    `ttft` and `e2e` count from the *intended* time: what was late before it was sent, behind a slow
    answer or for want of a connection, is part of what a user waits for. `*_sent` count from the
    first byte sent, as most load generators do, and hide a server that stalls.
    """

    session: int
    turn: int
    intended: float
    sent: float | None = None
    first: float | None = None  # the first delta with a token, not the head, not the role
    last: float | None = None  # the last one
    ended: float = 0.0  # the answer's end, or when it failed
    held: float = 0.0  # of the wait before sending: for the answer to the session's turn before
    late: float = 0.0  # the same: because the generator itself was busy
    status: int = 0
    error: str | None = None  # a kind: "connect", "timeout", "status 503", "cut", "in stream", …
    detail: str | None = None  # what the server said of the error, its beginning
    prompt_tokens: int | None = None  # these three as the server's usage says
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    num_deltas: int = 0  # chunks with tokens
    gaps: tuple[float, ...] = ()  # seconds between them
    headers: dict[str, str] | None = None  # names in lower case; only if they were asked for

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.intended

    @property
    def ttft_sent(self) -> float | None:
        return None if self.first is None or self.sent is None else self.first - self.sent

    @property
    def e2e(self) -> float:
        return self.ended - self.intended

    @property
    def e2e_sent(self) -> float | None:
        return None if self.sent is None else self.ended - self.sent

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the answer: as the usage says, else that of its deltas."""
        return self.num_deltas if self.completion_tokens is None else self.completion_tokens

    @property
    def itl(self) -> float | None:
        """The mean time between tokens. None where there are not two, or they came at once."""
        if self.first is None or self.last is None or self.num_deltas < 2 or self.num_tokens < 2:
            return None
        return (self.last - self.first) / (self.num_tokens - 1)

    def fail(self, error: str, detail: str | None = None) -> None:
        """Note what went wrong, unless something did before."""
        self.error, self.detail = self.error or error, self.detail or detail
