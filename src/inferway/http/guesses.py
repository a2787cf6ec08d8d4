"""Wrong keys, at the page's login and on paths for admins: so many are heard a minute, and no more.

A key is too long to be guessed; this keeps one that is not from being found, and guesses from
costing anything. An address that has failed `MOST_OF_ONE` times within `SECONDS` waits. Once
`MOST_IN_ALL` were wrong, whoever has failed at all waits; who has not may still try, once.

Who waits is told so whether the key is right or not, or it could go on guessing. But where a proxy
is in front, others have the same address, and theirs would keep admins out. So an address that a
right key has come from within `PROVEN_SECONDS` is always let in with one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from math import ceil

from inferway.errors import TooManyGuessesError

SECONDS = 60.0
MOST_OF_ONE = 10
MOST_IN_ALL = 100
MOST_ADDRESSES = 10_000  # beyond it the one that failed longest ago is forgotten
PROVEN_SECONDS = 3600.0
MOST_PROVEN = 1_000  # beyond it the one that was right longest ago is forgotten
_NETWORK_BITS = 64  # of an IPv6 address: a client has all addresses that share them


class Guesses:
    """Failures of the last `SECONDS` of `clock`, by address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()  # the last to fail is last
        self._all: deque[float] = deque(maxlen=MOST_IN_ALL)
        self._proven: OrderedDict[str, float] = OrderedDict()  # when; the last one is last

    def __len__(self) -> int:
        return len(self._failed)

    def hear(self, address: str, *, is_right: bool) -> None:
        """Count a key that came from there. Raises TooManyGuessesError for who has to wait."""
        if not (is_right and self._is_proven(address)):
            self.check(address)
        if is_right:
            self._prove(address)
        else:
            self.note(address)

    def lets_in(self, address: str) -> bool:
        """Return whether a right key would be heard from there now; nothing is counted."""
        if self._is_proven(address):
            return True
        try:
            self.check(address)
        except TooManyGuessesError:
            return False
        return True

    def check(self, address: str) -> None:
        """Raises TooManyGuessesError for an address that has to wait."""
        now = self._clock()
        self._forget(now - SECONDS)
        failed = self._failed.get(network_of(address))
        if failed is None:
            return
        if len(failed) == MOST_OF_ONE and failed[0] > now - SECONDS:
            raise _too_many(f"{MOST_OF_ONE} wrong keys came from there", failed[0] - now)
        if len(self._all) == MOST_IN_ALL:
            why = f"{MOST_IN_ALL} wrong keys came in all, from there, too,"
            raise _too_many(why, self._all[0] - now)

    def note(self, address: str) -> None:
        """Count a wrong key."""
        now, network = self._clock(), network_of(address)
        self._failed.setdefault(network, deque(maxlen=MOST_OF_ONE)).append(now)
        self._failed.move_to_end(network)
        self._all.append(now)
        if len(self._failed) > MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def _is_proven(self, address: str) -> bool:
        proven = self._proven.get(network_of(address))
        return proven is not None and proven > self._clock() - PROVEN_SECONDS

    def _prove(self, address: str) -> None:
        network = network_of(address)
        self._proven[network] = self._clock()
        self._proven.move_to_end(network)
        if len(self._proven) > MOST_PROVEN:
            self._proven.popitem(last=False)

    def _forget(self, before: float) -> None:
        while self._all and self._all[0] <= before:
            self._all.popleft()
        while self._failed:
            oldest = next(iter(self._failed.values()))
            if oldest[-1] > before:
                return
            self._failed.popitem(last=False)


def _too_many(why: str, since: float) -> TooManyGuessesError:
    seconds = max(1, ceil(since + SECONDS))
    return TooManyGuessesError(
        f"{why} within a minute: the next is heard in {seconds} s", retry_after=seconds
    )


def network_of(address: str) -> str:
    """Return what stands for all addresses of one host."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address  # of a Unix socket
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> (128 - _NETWORK_BITS) << (128 - _NETWORK_BITS)))
