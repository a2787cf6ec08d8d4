"""Both systems, each in processes of its own that are asked the same in turns: what the machine
does meanwhile meets both alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from inferway_bench.chats import Message
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.prompts import worker as worker_file
from inferway_bench.prompts.models import BenchModel
from inferway_bench.workers import JsonWorker

SYSTEMS = OURS, THEIRS = "Inferway", "transformers"
# No hub, and no advice about frameworks that are not there.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
# The shortest chat: with it transformers compiles its template, which we do when loading.
HI = [{"role": "user", "content": "Hi"}]

Chat = list[Message]
Given = dict[str, list[Mapping[str, Any]]]  # system -> its answers to the same questions


class Workers:
    """The processes of both systems."""

    def __init__(self, transformers: Path, on_step: OnStep) -> None:
        self.on_step = on_step
        self._pythons = {OURS: Path(sys.executable), THEIRS: transformers}

    def fresh(self, system: str) -> JsonWorker:
        """Return a process that has loaded nothing."""
        command = [self._pythons[system], "-P", str(worker_file.__file__), system]
        return JsonWorker(system, command, {**os.environ, **_ENVIRONMENT})

    @contextmanager
    def prepared(self, system: str, model: BenchModel) -> Iterator[JsonWorker]:
        """Yield a process that has loaded `model` and compiled its template."""
        with self.fresh(system) as worker:
            ask(worker, "load", model=str(model.directory))
            ask(worker, "tokenize", chat=HI)
            yield worker

    @contextmanager
    def both(self, model: BenchModel) -> Iterator[Mapping[str, JsonWorker]]:
        """Yield a process of each system that has loaded `model`."""
        with ExitStack() as stack:
            yield {s: stack.enter_context(self.prepared(s, model)) for s in SYSTEMS}


def ask(worker: JsonWorker, what: str, **details: object) -> Mapping[str, Any]:
    """Return a worker's answer. Raises BenchError when it has none."""
    answer: Mapping[str, Any] = worker.ask({"do": what, **details})
    if "error" in answer:
        raise BenchError(f"{worker.name}, {what}: {answer['error']}")
    return answer


def in_turn(repeat: int) -> Sequence[str]:
    """Return the systems in the order of a repeat: who is first changes."""
    return SYSTEMS if repeat % 2 == 0 else SYSTEMS[::-1]


def asked(workers: Mapping[str, JsonWorker], what: str, chats: Iterable[Chat]) -> Given:
    """Ask both systems the same of each chat. Raises BenchError when they find other tokens, or
    another text: then their times say nothing."""
    given: Given = {system: [] for system in SYSTEMS}
    for repeat, chat in enumerate(chats):
        for system in in_turn(repeat):
            given[system].append(ask(workers[system], what, chat=chat))
    check_same(what, given)
    return given


def check_same(what: str, given: Given) -> None:
    """Raises BenchError when the systems have found different things."""
    ours, theirs = ([answer["digest"] for answer in given[system]] for system in SYSTEMS)
    if ours != theirs:
        raise BenchError(f"{what}: transformers finds other tokens or another text than we do")
