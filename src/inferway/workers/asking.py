"""The hub's questions to processes beside it, and their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable

from inferway.workers.messages import Message, Numbers, Prepared, SnapshotsTold
from inferway.workers.seat import Seat

ANSWER_SECONDS = 2.0  # to tell numbers, or whether settings can hold


class Asking:
    """`all` asks, `answered` takes an answer, `ended` tells that a process gives none any more."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._answers: dict[tuple[Seat, int], asyncio.Future[Message]] = {}

    async def all(
        self, seats: Iterable[Seat], ask: Callable[[Seat, int], Message]
    ) -> dict[Seat, Message]:
        """Return the answers of those that give one in time. `ask`: what a process is asked, with
        the number that its answer shall have."""
        loop, asked = asyncio.get_running_loop(), []
        for seat in seats:
            if seat.ready.is_set():
                number = next(self._numbers)
                future: asyncio.Future[Message] = loop.create_future()
                self._answers[seat, number] = future
                asked.append((seat, number, future))
                seat.send(ask(seat, number))
        if not asked:
            return {}
        done, _ = await asyncio.wait([each for *_, each in asked], timeout=ANSWER_SECONDS)
        for seat, number, _ in asked:
            self._answers.pop((seat, number), None)
        return {
            seat: future.result()
            for seat, _, future in asked
            if future in done and not future.cancelled()
        }

    def answered(self, seat: Seat, message: Prepared | Numbers | SnapshotsTold) -> None:
        answer = self._answers.get((seat, message.number))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def ended(self, seat: Seat) -> None:
        for (asked, _), answer in self._answers.items():
            if asked is seat:
                answer.cancel()
