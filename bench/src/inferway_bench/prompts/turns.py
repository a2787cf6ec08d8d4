"""Both systems asked the same, in turns: what the machine does meanwhile hits both alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.prompts.asking import Asked, Interpreters, asked
from inferway_bench.prompts.models import BenchModel
from inferway_bench.prompts.results import Series

Answer = Mapping[str, Any]

SYSTEMS = ("inferway", "transformers")

# The shortest chat: with it transformers compiles its template, which we do when loading.
HI = [{"role": "user", "content": "Hi"}]


def in_turn(repeat: int) -> Sequence[str]:
    """Who is first changes."""
    return SYSTEMS if repeat % 2 == 0 else SYSTEMS[::-1]


@dataclass(slots=True)
class Both:
    """Answers of both systems to the same questions, in order."""

    answers: dict[str, list[Answer]] = field(default_factory=lambda: {s: [] for s in SYSTEMS})

    def add(self, system: str, answer: Answer) -> None:
        self.answers[system].append(answer)

    def series(self, system: str) -> Series:
        """Microseconds."""
        given = self.answers[system]
        return Series(
            [round(a["wall"] / 1e3, 2) for a in given], [round(a["cpu"] / 1e3, 2) for a in given]
        )

    def check_same(self, what: str) -> None:
        """Raises BenchError when the systems disagree: then their times say nothing."""
        ours, theirs = ([a["digest"] for a in self.answers[s]] for s in SYSTEMS)
        if ours != theirs:
            raise BenchError(f"{what}: transformers finds other tokens or another text than we do")

    @property
    def tokens(self) -> int:
        return int(self.answers["inferway"][0]["tokens"])


@dataclass(frozen=True, slots=True)
class Workers:
    """Starts them; `work` gets their logs."""

    interpreters: Interpreters
    work: Path
    on_step: OnStep

    def fresh(self, system: str) -> AbstractContextManager[Asked]:
        """A process that has loaded nothing."""
        return asked(system, self.interpreters, self.work)

    @contextmanager
    def prepared(self, system: str, model: BenchModel) -> Iterator[Asked]:
        """A process that has loaded `model` and compiled its template."""
        with self.fresh(system) as worker:
            worker.ask("load", model=str(model.directory))
            worker.ask("tokenize", chat=HI)
            yield worker

    @contextmanager
    def both(self, model: BenchModel) -> Iterator[Mapping[str, Asked]]:
        with ExitStack() as stack:
            yield {s: stack.enter_context(self.prepared(s, model)) for s in SYSTEMS}
