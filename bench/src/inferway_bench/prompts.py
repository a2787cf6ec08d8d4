"""`inferway bench prompts`: what the tokens of real chats cost, beside transformers.

Each system has processes of its own (`prompts_worker`), which are asked the same in turns. Ratios
are of CPU time: wall time on a busy machine would flatter whoever is shorter, because the longer
one is interrupted more often.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import msgspec

from inferway import __version__
from inferway.doctor.machine import cache_dir
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderRequest
from inferway.prompts.renderer import Renderer
from inferway_bench import prompts_worker
from inferway_bench.data_files import default_data_dir, unpacked
from inferway_bench.flags import data_flag, flag
from inferway_bench.harness import Benchmark
from inferway_bench.processes import BenchError, JsonWorker, OnStep, in_turn, install_venv
from inferway_bench.rows import Column, Findings, Key, Row, Table, Value
from inferway_bench.spread import ratio_of_medians, three_digits
from inferway_sim.prepare import prepare_smollm2

SYSTEMS = OURS, THEIRS = "Inferway", "transformers"
TRANSFORMERS = "5.19.0"  # what vLLM 0.32 has
FIRST, MET, ANOTHER = "first in the process", "words met before", "another chat"
ONE_TURN_MORE = "one turn more"
CHATS = "chats"
_WARM_UP_SEED = 1_000_000  # no repeat has it
# No hub, and no advice about frameworks that are not there.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
# The shortest chat: with it transformers compiles its template, which we do when loading.
_HI = [{"role": "user", "content": "Hi"}]
_ENDINGS = (".jsonl", ".gz", ".xz")

Message = dict[str, str]
Chat = list[Message]
Given = dict[str, list[Mapping[str, Any]]]  # system -> its answers to the same questions


class PromptsPlan(msgspec.Struct, frozen=True):
    """The numbers of measurements, and the sizes of prompts."""

    repeats: Annotated[int, flag("Measure each kind of chat this number of times.", ge=1)] = 21
    fresh_processes: int = 9
    chat_tokens: int = 8_500
    growing_tokens: int = 128_000
    served_before: int = 40  # chats that a process has served before another one comes
    seed: Annotated[int, flag("Draw the order of the conversations with this seed.")] = 3
    data: Annotated[Path | None, data_flag("chat")] = None


def measure(plan: PromptsPlan, on_step: OnStep, transformers: Path | None = None) -> Findings:
    """Measure beside the transformers of the interpreter `transformers`, or else of a virtual
    environment that is made for it, with the same libraries below it and no torch. Raises
    BenchError, with the cure, when something cannot be had or the two disagree."""
    data = plan.data or default_data_dir()
    conversations = load_conversations(data / "chat")
    if transformers is None:
        same = [f"{name}=={version(name)}" for name in ("tokenizers", "jinja2")]
        wanted = [f"transformers=={TRANSFORMERS}", *same]
        cure = "let this machine reach PyPI: the comparison is the benchmark"
        venv = install_venv(cache_dir() / "transformers", wanted, on_step, cure)
        transformers = venv.executable("python")
    names = ("tokenizers", "fastokens", "jinja2")
    versions = {"inferway": __version__, THEIRS: TRANSFORMERS, **{n: version(n) for n in names}}
    about = (
        f"{', '.join(f'{name} {v}' for name, v in versions.items())}; both in the same run, taking "
        f"turns. Text: {len(conversations):,} real conversations of {data.name}/chat, in an "
        "order drawn once, joined until they are long enough; SmolLM2's tokenizer and template."
    )
    rows = chat_rows(plan, conversations, Workers(transformers, on_step))
    return Findings(rows=list(rows), about=[about])


# the chats


def load_conversations(directory: Path) -> list[Chat]:
    """Return all conversations of the directory's `*.jsonl`, packed or not, as their user and
    assistant turns; what tools said is left out. Raises BenchError when there are none."""
    conversations = []
    for path in sorted(p for p in directory.glob("*.jsonl*") if p.suffix in _ENDINGS):
        for line in unpacked(path).splitlines():
            kept = [
                {"role": message["role"], "content": message["content"]}
                for message in msgspec.json.decode(line)["messages"]
                if message["role"] in ("user", "assistant") and message["content"]
            ]
            if kept:
                conversations.append(kept)
    if not conversations:
        raise BenchError(
            f"{directory}: no conversations; fix: --data DIR, where DIR/chat holds *.jsonl "
            '(.gz, .xz) files with one {"messages": [{"role": …, "content": …}, …]} a line'
        )
    return conversations


class Turns(Iterator[Message]):
    """An endless stream of turns, and chats that are made of them: conversations in an order drawn
    once, one behind the other. Must be closed."""

    def __init__(self, conversations: Sequence[Chat], seed: int, model: str) -> None:
        shuffled = random.Random(seed).sample(conversations, len(conversations))
        self._stream = (turn for _ in count() for each in shuffled for turn in each)
        # of its own: nobody's caches learn from what is counted
        self._renderer = Renderer(num_threads=1)
        wanted = GetOrCreateTokenizerKeyRequest(model)
        self._key = self._renderer.get_or_create_tokenizer_key(wanted)

    def __next__(self) -> Message:
        return next(self._stream)

    def chat(self, num_tokens: int) -> Chat:
        """Return a chat of about so many tokens; the last turn is cut and is the user's."""
        made, left = list[Message](), num_tokens
        while True:
            text = next(self)["content"]
            request = RenderRequest(self._key, text, add_special_tokens=False)
            length = max(1, len(self._renderer.render(request).input_ids))
            if length >= left:
                cut = max(1, len(text) * left // length)
                return [*made, {"role": "user", "content": text[:cut]}]
            made.append({"role": ("user", "assistant")[len(made) % 2], "content": text})
            left -= length

    def growing(self, num_tokens: int) -> Iterator[Chat]:
        """Yield a chat, and then the same with one answer and one question more each time."""
        chat = self.chat(num_tokens)
        while True:
            yield chat
            more = ({**next(self), "role": role} for role in ("assistant", "user"))
            chat = [*chat, *more]

    def close(self) -> None:
        """End the threads of the renderer."""
        self._renderer.close()


def reshuffled(chat: Sequence[Message], seed: int) -> Chat:
    """Return the same roles and the same sentences in another order, dealt anew to the turns with
    cuts before any word: no turn is the same text, but nearly every word is one that `chat` had."""
    rng = random.Random(seed)
    texts = (f"{message['content']}\n" for message in chat)
    sentences = [s for text in texts for s in re.split(r"(?<=[.!?] )|(?<=\n)", text)]
    rng.shuffle(sentences)
    text = "".join(sentences)
    borders = [match.start() for match in re.finditer(r"(?<=\S)\s", text)]
    cuts = sorted(rng.sample(borders, len(chat) - 1))
    return [
        {"role": message["role"], "content": text[start:end]}
        for message, start, end in zip(chat, [0, *cuts], [*cuts, len(text)], strict=True)
    ]


# both systems


class Workers:
    """The processes of both systems."""

    def __init__(self, transformers: Path, on_step: OnStep) -> None:
        self.on_step = on_step
        self._pythons = {OURS: Path(sys.executable), THEIRS: transformers}

    @contextmanager
    def prepared(self, system: str, model: str) -> Iterator[JsonWorker]:
        """Yield a process that has loaded the model in a directory and compiled its template."""
        command = [self._pythons[system], "-P", str(prompts_worker.__file__), system]
        with JsonWorker(system, command, {**os.environ, **_ENVIRONMENT}) as worker:
            worker.read()
            worker.ask({"model": model})
            worker.ask({"chat": _HI})
            yield worker

    def asked_first(self, model: str, chats: Sequence[Chat]) -> Given:
        """Return what a process of its own of each system answers to each chat."""
        given: Given = {system: [] for system in SYSTEMS}
        for repeat, chat in enumerate(chats):
            self.on_step(FIRST, repeat, len(chats))
            for system in in_turn(SYSTEMS, repeat):
                with self.prepared(system, model) as worker:
                    given[system].append(worker.ask({"chat": chat}))
        return given

    @contextmanager
    def both(self, model: str) -> Iterator[Mapping[str, JsonWorker]]:
        """Yield a process of each system that has loaded the model."""
        with ExitStack() as stack:
            yield {s: stack.enter_context(self.prepared(s, model)) for s in SYSTEMS}


def _asked(workers: Mapping[str, JsonWorker], chats: Iterable[Chat]) -> Given:
    """What both systems answer to the same, of each chat."""
    given: Given = {system: [] for system in SYSTEMS}
    for repeat, chat in enumerate(chats):
        for system in in_turn(SYSTEMS, repeat):
            given[system].append(workers[system].ask({"chat": chat}))
    return given


# what is measured, in rows


def row_pair(tokens: int, chat: str, given: Given) -> Iterator[Row]:
    """Yield the row of each system, theirs with how many times ours it is. Raises BenchError when
    the systems find other tokens: then their times say nothing."""
    ours, theirs = ([answer["digest"] for answer in given[system]] for system in SYSTEMS)
    if ours != theirs:
        raise BenchError(f"{chat}: transformers finds other tokens than we do")
    found = {
        system: {
            column: [round(answer[clock] / 1e3, 2) for answer in answers]
            for column, clock in (("time", "wall"), ("CPU", "cpu"))
        }
        for system, answers in given.items()
    }
    keys: dict[str, Key] = {"tokens": tokens, "chat": chat}
    prompt = float(given[OURS][0]["tokens"])
    yield Row(CHATS, {**keys, "system": OURS}, {**found[OURS], "prompt": prompt})
    ratio = ratio_of_medians(found[THEIRS]["CPU"], found[OURS]["CPU"])
    more: dict[str, Value] = {**found[THEIRS], "ratio": ratio}
    yield Row(CHATS, {**keys, "system": THEIRS}, more, is_ours=False)


def chat_rows(plan: PromptsPlan, conversations: Sequence[Chat], workers: Workers) -> Iterator[Row]:
    """Yield what chats cost in processes that have met this and that; each is drawn once."""
    tokens, model = plan.chat_tokens, str(prepare_smollm2())
    with closing(Turns(conversations, plan.seed, model)) as turns:
        fresh = (turns.chat(tokens) for _ in range(plan.fresh_processes))
        yield from row_pair(tokens, FIRST, workers.asked_first(model, list(fresh)))
        with workers.both(model) as both:
            workers.on_step(MET)
            chat = turns.chat(tokens)
            # several times, so that pieces at a turn's edge have been met too
            _asked(both, (reshuffled(chat, _WARM_UP_SEED + i) for i in range(4)))
            dealt = (reshuffled(chat, repeat) for repeat in range(plan.repeats))
            yield from row_pair(tokens, MET, _asked(both, dealt))
            workers.on_step(ANOTHER)
            _asked(both, (turns.chat(tokens) for _ in range(plan.served_before)))
            unseen = (turns.chat(tokens) for _ in range(plan.repeats))
            yield from row_pair(tokens, ANOTHER, _asked(both, unseen))
        for length in (tokens, plan.growing_tokens):
            with workers.both(model) as both:
                workers.on_step(f"{ONE_TURN_MORE}, {length:,} tokens")
                # each turn comes once: a chat's second measurement is not one of growth
                growing = turns.growing(length)
                _asked(both, [next(growing)])
                more = _asked(both, islice(growing, plan.repeats))
                yield from row_pair(length, ONE_TURN_MORE, more)


PROMPTS = Benchmark(
    "prompts",
    "Measure what rendering and tokenizing real chats takes, beside transformers in the same run.",
    PromptsPlan,
    measure,
    [
        Table(
            CHATS, "Chats, render and tokenize, µs: median (quartiles)", ["tokens", "chat"],
            [
                Column("prompt", "tokens in all", "{:,.0f}"),
                Column("time", "", three_digits, "quartiles"),
                Column("CPU", form=three_digits), Column("ratio", "times ours (95 %)", "{:.2f}"),
            ],
            across="system",
            notes=[
                f"*{FIRST}*: a fresh process each time; model loaded, template compiled, no word "
                "met before",
                f"*{MET}*: the sentences of a chat that was served, dealt anew to its turns: no "
                "turn is known",
                f"*{ANOTHER}*: real chats never seen, in a process that served {{served_before}} "
                "others",
                f"*{ONE_TURN_MORE}*: the chat of the request before, an answer and a question",
            ],
        ),
    ],
    quick={"repeats": 5, "fresh_processes": 3, "served_before": 10},
    question="how much time rendering and tokenizing real chats takes, compared with transformers",
    takes="3 minutes",
)  # fmt: skip
prompts = PROMPTS.command()
