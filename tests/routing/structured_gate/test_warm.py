from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
from tests.routing.structured_gate.doubles import Clock, endpoints

from inferway.errors import UpstreamError
from inferway.model import Endpoint
from inferway.routing.structured_gate.counts import GateCounts
from inferway.routing.structured_gate.warm import MAX_BYTES, MAX_OPEN, Warmer
from inferway_structured.spec import Kind, Options, OutputConstraint, Spec

ENGINE, OTHER = endpoints("e0", "e1")
REGEX = OutputConstraint(Spec(Kind.REGEX, "[ab]", Options(any_whitespace=False)), "x", strict=True)


@dataclass
class Posted:
    """What engines were sent; they answer once they are let."""

    bodies: list[bytes] = field(default_factory=list)
    engines: list[str] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 202
    answer: bytes = b'{"accepted":true}'
    took: dict[str, float] = field(default_factory=dict)
    counts: GateCounts = field(default_factory=GateCounts)
    clock: Clock = field(default_factory=Clock)
    busy: bool = False

    async def __call__(self, endpoint: Endpoint, body: bytes) -> tuple[int, bytes]:
        self.bodies.append(body)
        self.engines.append(endpoint.engine)
        await self.may_answer.wait()
        if self.status == 0:
            raise UpstreamError("no connection")
        return self.status, self.answer

    def warmer(self, per_second: float = 100.0) -> Warmer:
        return Warmer(
            self, per_second, self.counts, self.took.__setitem__, self.clock, lambda: self.busy
        )


async def settled(posted: Posted, number: int) -> None:
    posted.may_answer.set()
    async with asyncio.timeout(5):
        while sum(posted.counts.warmed.values()) < number:
            await asyncio.sleep(0)


async def test_an_engine_is_told_the_whole_spec() -> None:
    posted = Posted()
    posted.warmer().tell(ENGINE, REGEX)
    await settled(posted, 1)

    (body,) = posted.bodies
    assert msgspec.json.decode(body) == {
        "kind": "regex",
        "text": "[ab]",
        "options": {
            "any_whitespace": False,
            "additional_properties": True,
            "whitespace_pattern": None,
        },
    }
    assert posted.engines == ["e0"]
    assert posted.counts.warmed == {"sent": 1}


async def test_what_the_engine_says_of_its_time_is_passed_on() -> None:
    posted = Posted(answer=b'{"accepted":true,"compile_ms":12.5}')
    posted.warmer().tell(ENGINE, REGEX)
    await settled(posted, 1)

    assert posted.took == {REGEX.spec.key: 12.5}


async def test_an_engine_that_refuses_fails_or_is_not_there_is_counted() -> None:
    for posted in (Posted(status=429), Posted(status=0), Posted(answer=b"[")):
        posted.warmer().tell(ENGINE, REGEX)
        await settled(posted, 1)

    assert posted.took == {}


async def test_so_many_at_one_engine_at_a_time_and_no_more() -> None:
    posted = Posted()
    warmer = posted.warmer()
    for _ in range(MAX_OPEN + 3):
        warmer.tell(ENGINE, REGEX)
    warmer.tell(OTHER, REGEX)

    await settled(posted, MAX_OPEN + 4)

    assert posted.counts.warmed == {"dropped": 3, "sent": MAX_OPEN + 1}


async def test_so_many_in_a_second_and_no_more() -> None:
    posted = Posted()
    warmer = posted.warmer(per_second=1.0)

    warmer.tell(ENGINE, REGEX)
    warmer.tell(ENGINE, REGEX)
    posted.clock.now = 1.0
    warmer.tell(ENGINE, REGEX)
    await settled(posted, 3)

    assert posted.counts.warmed == {"dropped": 1, "sent": 2}


async def test_under_load_nothing_is_told() -> None:
    posted = Posted(busy=True)
    posted.warmer().tell(ENGINE, REGEX)

    assert posted.counts.warmed == {"dropped": 1}


async def test_what_is_large_is_not_told() -> None:
    posted = Posted()
    posted.warmer().tell(ENGINE, OutputConstraint(Spec(Kind.REGEX, "a" * (MAX_BYTES + 1)), "x"))

    assert posted.counts.warmed == {"dropped": 1}


async def test_closing_waits_for_no_engine() -> None:
    posted = Posted()
    warmer = posted.warmer()
    warmer.tell(ENGINE, REGEX)
    await asyncio.sleep(0)

    await asyncio.wait_for(warmer.close(), 5)

    assert posted.counts.warmed == {}
