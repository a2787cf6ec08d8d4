from __future__ import annotations

import asyncio

import pytest

from inferway_structured.verdicts import SingleFlight


async def test_a_value_is_worked_out_once_and_the_last_asked_for_are_kept() -> None:
    flight: SingleFlight[str] = SingleFlight(2)
    worked: list[str] = []

    async def ask(key: str) -> str:
        async def work() -> str:
            worked.append(key)
            await asyncio.sleep(0)
            return key.upper()

        return await flight.get(key, work)

    assert await asyncio.gather(*(ask("a") for _ in range(5))) == ["A"] * 5
    await ask("b")
    await ask("a")
    await ask("c")

    assert worked == ["a", "b", "c"]
    assert (flight.known("a"), flight.known("b"), len(flight)) == ("A", None, 2)


async def test_an_error_is_not_kept() -> None:
    flight: SingleFlight[str] = SingleFlight(2)

    async def fails() -> str:
        raise ValueError("fails")

    async def works() -> str:
        return "value"

    with pytest.raises(ValueError, match="fails"):
        await flight.get("a", fails)

    assert await flight.get("a", works) == "value"
