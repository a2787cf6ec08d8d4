"""Requests with which engines were lost: what is tried no more, and what is refused for a while.
No I/O.

A request that ends its engine would end the next one, too. One that only was there when an engine
was lost looks the same; two engines that were lost with it are enough to hold it back.

what happened to an engine that had the request      then
it closed the connection, or says nothing any more   it counts at once, and no longer once the
                                                     engine is seen to be up after all
it answered 500, or gave up its answer               it counts once the engine is seen to be down
an engine answered the request to the end            nothing counts any more
it counts twice                                      equal requests are refused

Requests are known by a digest of their body. None is made while no request is suspected.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from inferway.errors import QuarantinedRequestError
from inferway.metrics import Family, counter, gauge

log = logging.getLogger("inferway.forward")

MOST_LOST = 2  # engines, with one request
MOST_REMEMBERED = 4096  # requests
# When an engine that has failed a request is looked at: whether it is gone.
LOOKS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds, each from the one before

# Calls a function in so many seconds.
CallLater = Callable[[float, Callable[[], None]], object]


@dataclass(slots=True)
class _Suspect:
    """A request, until it is forgotten. `lost`: the engines that count."""

    until: float
    lost: list[str] = field(default_factory=list)
    is_refused: bool = False
    is_told: bool = False  # that it is refused: another process counts and logs it


class RequestQuarantine:
    """Remembers the requests that engines were lost with. Of one event loop."""

    def __init__(
        self,
        seconds: Callable[[], float],
        is_up: Callable[[str], bool],
        clock: Callable[[], float],
        call_later: CallLater,
        tell: Callable[[str, str, bool], None] | None = None,
    ) -> None:
        """A request is remembered for so many `seconds` after it was last at an engine that was
        lost; 0: none is. `is_up`: whether the engine of this name can be reached now. `tell`:
        others that send to the same engines, of each engine that counts, or counts no longer: a
        request's digest, the engine or "" for all, and whether it counts."""
        self._seconds = seconds
        self._is_up = is_up
        self._clock = clock
        self._call_later = call_later
        self._suspects: OrderedDict[str, _Suspect] = OrderedDict()  # in the order they end
        self._num_refusals = 0
        self.tell = tell

    @property
    def suspects_any(self) -> bool:
        """True if any request is suspected."""
        return bool(self._suspects)

    def losses(self, body: bytes, later: Callable[[], bytes]) -> EngineLosses:
        """Return the losses of a request that is to be sent. `later`: the same body; empty if it is
        not kept any more. Raises QuarantinedRequestError."""
        self._forget()
        return EngineLosses(self, later, self._checked(body) if self._suspects else "")

    def _checked(self, body: bytes) -> str:
        digest = digest_of(body)
        suspect = self._suspects.get(digest)
        if suspect is not None and suspect.is_refused:
            self._num_refusals += 1
            left = suspect.until - self._clock()
            raise QuarantinedRequestError(
                f"this request was at {len(suspect.lost)} engines when they were lost, and is"
                f" refused for {left:.0f} s more (retries.quarantine_seconds); change it, or find"
                f" out from the engines' logs what it does to them (its digest: {digest})"
            )
        return digest

    def lost(self, digest: str, engine: str) -> None:
        """An engine is lost that had the request."""
        if self._seconds() > 0:
            self._count(digest, engine)
            self._look(digest, engine, LOOKS, counts=True)

    def failed(self, digest: str, engine: str) -> None:
        """An engine has failed the request, and may be lost."""
        if self._seconds() > 0:
            self._look(digest, engine, LOOKS, counts=False)

    def answered(self, digest: str) -> None:
        """An engine has answered the request to the end."""
        if self._suspects.pop(digest, None) is not None and self.tell is not None:
            self.tell(digest, "", False)

    def hear(self, digest: str, engine: str, counts: bool) -> None:
        """Take over an outcome that another process has told."""
        if counts:
            self._remember(digest, engine, is_told=True)
        elif engine:
            self._forgive(digest, engine)
        else:
            self._suspects.pop(digest, None)

    def _count(self, digest: str, engine: str) -> None:
        if self.tell is not None:
            self.tell(digest, engine, True)
        self._remember(digest, engine, is_told=False)

    def _remember(self, digest: str, engine: str, *, is_told: bool) -> None:
        suspect = self._suspects.pop(digest, None) or _Suspect(0.0)
        suspect.until = self._clock() + self._seconds()
        suspect.lost.append(engine)
        self._suspects[digest] = suspect
        self._forget()
        if len(suspect.lost) < MOST_LOST or suspect.is_refused:
            return
        suspect.is_refused, suspect.is_told = True, is_told
        log.log(
            logging.DEBUG if is_told else logging.WARNING,
            "the request with the digest %s was at the engines %s when they were lost; equal ones"
            " are refused for %g s (retries.quarantine_seconds)",
            *(digest, " and ".join(suspect.lost), self._seconds()),
        )

    def _look(self, digest: str, engine: str, waits: tuple[float, ...], *, counts: bool) -> None:
        def look() -> None:
            if not self._is_up(engine):
                if not counts:
                    self._count(digest, engine)
            elif len(waits) > 1:
                self._look(digest, engine, waits[1:], counts=counts)
            elif counts:
                self._take_back(digest, engine)

        self._call_later(waits[0], look)

    def _take_back(self, digest: str, engine: str) -> None:
        if self.tell is not None:
            self.tell(digest, engine, False)
        self._forgive(digest, engine)

    def _forgive(self, digest: str, engine: str) -> None:
        suspect = self._suspects.get(digest)
        if suspect is None or engine not in suspect.lost:
            return
        suspect.lost.remove(engine)
        if suspect.is_refused and len(suspect.lost) < MOST_LOST:
            suspect.is_refused = False
            log.info("engine %s is up: the request %s is refused no longer", engine, digest)
        if not suspect.lost:
            del self._suspects[digest]

    def _forget(self) -> None:
        suspects, now = self._suspects, self._clock()
        while suspects:
            digest, suspect = next(iter(suspects.items()))
            if suspect.until > now and len(suspects) <= MOST_REMEMBERED:
                return
            del suspects[digest]

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        self._forget()
        yield gauge(
            "quarantined_requests",
            "Requests that are refused now because two engines were lost while they had them.",
            value=sum([s.is_refused and not s.is_told for s in self._suspects.values()]),
        )
        yield counter(
            "quarantine_refusals",
            "Requests that were refused because two engines were lost with equal ones.",
            value=self._num_refusals,
        )


class EngineLosses:
    """The engines that were lost while they had one request: in all its tries, its legs and the
    rests of its answer."""

    __slots__ = ("_body", "_digest", "_engines", "_quarantine")

    def __init__(
        self,
        quarantine: RequestQuarantine | None = None,
        body: Callable[[], bytes] = bytes,
        digest: str = "",
    ) -> None:
        """`body`: of the request; empty if it is not kept any more. `digest`: of the same; empty:
        it is made when it is needed."""
        self._quarantine = quarantine
        self._body = body
        self._digest = digest
        self._engines: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return len(self._engines)

    @property
    def are_too_many(self) -> bool:
        """True if the request is sent to no further engine."""
        return len(self._engines) >= MOST_LOST

    def lost(self, engine: str) -> None:
        """The engine was lost. Counts once for each engine."""
        if self._note(engine) and self._quarantine is not None:
            self._quarantine.lost(self._digest, engine)

    def failed(self, engine: str) -> None:
        """The engine has ended the answer with an error, and may be lost. As `lost`."""
        if self._note(engine) and self._quarantine is not None:
            self._quarantine.failed(self._digest, engine)

    def answered(self) -> None:
        """The request was answered to the end."""
        if self._digest and self._quarantine is not None:
            self._quarantine.answered(self._digest)

    def _note(self, engine: str) -> bool:
        """Return whether there is anything to tell of this engine."""
        if engine in self._engines:
            return False
        self._engines = (*self._engines, engine)
        body = b"" if self._digest or self._quarantine is None else self._body()
        if body:
            self._digest = digest_of(body)
        return bool(self._digest)


def digest_of(body: bytes) -> str:
    """Return what equal bodies have in common, and others have not."""
    return hashlib.sha256(body).hexdigest()[:16]
