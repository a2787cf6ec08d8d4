"""Templates alone, and what is done once: loading, compiling, staying in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inferway_bench.prompts.asking import Asked
from inferway_bench.prompts.models import SEED_003, BenchModel, BenchModels
from inferway_bench.prompts.results import Row, Series, Target
from inferway_bench.prompts.turns import HI, SYSTEMS, Both, Workers, in_turn

RENDER_TIME, RENDER_PEAK = "Rendering, time", "Rendering, most memory allocated at a time"
LOADING = "Loading and memory"


def render_rows(models: BenchModels, workers: Workers, rounds: int) -> Iterator[Row]:
    """Rendering alone, for seed 003's conversations."""
    for model in (models.plain, models.granite, *models.others[:1]):
        with workers.both(model) as both:
            for name, chat in SEED_003.items():
                workers.on_step(f"rendering: {model.label}, {name}")
                label = f"{model.label}, {name}"
                yield from _rendered(both, label, chat, rounds)


def _rendered(workers: Mapping[str, Asked], label: str, chat: Any, rounds: int) -> Iterator[Row]:
    both, peaks = Both(), {system: Series([]) for system in SYSTEMS}
    for repeat in range(rounds):
        for system in in_turn(repeat):
            both.add(system, workers[system].ask("render", chat=chat))
    for system in SYSTEMS:
        for _ in range(3):
            answer = workers[system].ask("render_bytes", chat=chat)
            peaks[system].wall.append(round(answer["bytes"] / 1024, 2))
    both.check_same(label)
    yield Row(
        table=RENDER_TIME,
        name=label,
        unit="µs",
        ours=both.series("inferway"),
        theirs=both.series("transformers"),
        target=Target(share=0.7),
        seed="50-60 µs",
    )
    yield Row(
        table=RENDER_PEAK,
        name=label,
        unit="KiB",
        ours=peaks["inferway"],
        theirs=peaks["transformers"],
        target=Target(share=0.7),
        seed="15 KB",
    )


def loading_rows(models: BenchModels, workers: Workers, repeats: int) -> Iterator[Row]:
    """Fresh processes: what it takes once, what it takes to stay, what a request looks up."""
    for model in (models.plain, *models.others):
        answers = {system: [_loaded(workers, system, model, 0)] for system in SYSTEMS}
        for repeat in range(1, repeats):
            for system in in_turn(repeat):
                answers[system].append(_loaded(workers, system, model, repeat))
        yield from _loading_rows(model.label, answers)


def _loaded(workers: Workers, system: str, model: BenchModel, repeat: int) -> dict[str, float]:
    workers.on_step(f"loading {model.label}: {system}, {repeat + 1}")
    with workers.fresh(system) as worker:
        worker.ask("hello")
        empty = worker.resident_bytes
        load = worker.ask("load", model=str(model.directory))
        worker.ask("tokenize", chat=HI)
        resident = worker.resident_bytes
        compiled, fetched = worker.ask("compile"), worker.ask("fetch")
        return {
            "load": load["wall"] / 1e6,
            "load cpu": load["cpu"] / 1e3,
            "resident": resident / 2**20,
            "of it tokenizer": (resident - empty) / 2**20,
            "compile": compiled["wall"] / 1e3,
            "compile cpu": compiled["cpu"] / 1e3,
            "fetch": fetched["wall"] / 1e3,
            "fetch cpu": fetched["cpu"] / 1e3,
            "fetch peak": worker.ask("fetch_bytes")["bytes"] / 1024,
        }


def _loading_rows(
    label: str, answers: Mapping[str, Sequence[Mapping[str, float]]]
) -> Iterator[Row]:
    def row(
        what: str,
        name: str,
        unit: str,
        *,
        beside: bool = True,
        target: Target | None = None,
        seed: str = "",
    ) -> Row:
        ours, theirs = (
            Series(
                [round(a[what], 3) for a in answers[system]],
                [round(a[f"{what} cpu"], 3) for a in answers[system] if f"{what} cpu" in a],
            )
            for system in SYSTEMS
        )
        return Row(
            table=LOADING,
            name=f"{name}, {label}",
            unit=unit,
            ours=ours,
            theirs=theirs if beside else None,
            target=target,
            seed=seed,
        )

    yield row("load", "load, once per model", "ms")
    yield row("compile", "compile, once per template", "µs")
    yield row(
        "fetch", "fetch, key known", "µs", beside=False, target=Target(most=5), seed="50-200 µs"
    )
    yield row("fetch peak", "fetch, peak", "KiB", beside=False, seed="22 KB")
    yield row("resident", "resident memory of the process", "MiB")
    yield row("of it tokenizer", "of it since the imports", "MiB")
