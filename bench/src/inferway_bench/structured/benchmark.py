"""`inferway bench structured`: which real JSON schemas each library enforces, and how fast.

A file has schemas and instances: a line is `{"id", "schema", "tests": [{"valid", "data"}]}`,
JSONSchemaBench's as MaskBench has it. Libraries that make an object property by property, in the
order in which the schema lists them, refuse the same object written in another order. That says
nothing about what they would let a model write; so every instance is judged both as it came and in
order.

Each system is a process of its own (`worker`). They take turns schema by schema, each time another
first: a machine that becomes slower is so for all of them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from inferway.errors import SpecError
from inferway_bench.flags import flag, unpacked
from inferway_bench.harness import Benchmark
from inferway_bench.processes import BenchError, JsonWorker, OnStep, in_turn, of_vllm, with_sources
from inferway_bench.rows import Column, Findings, Row, Table, Value
from inferway_bench.structured.worker import BESIDE_ENGINE, OURS, SYSTEMS, vocabulary_of
from inferway_sim.prepare import PACKAGED_SMOLLM2
from inferway_structured.backends.schemas.nodes import Document, Node
from inferway_structured.backends.schemas.shapes import takes
from inferway_structured.validate.json_schema_drafts import validator_of
from inferway_structured.validate.keywords import pointer

ORDERS = {"taken": "as they came", "ordered": "in schema order"}  # a worker's word -> ours
LLGUIDANCE = "llguidance"
COUNTED = ("all right", "refuse a valid one", "accept an invalid one", "unnamed")
SUM_TO, P95_TO, WORST_TO = "sum / llguidance's", "p95 / its", "worst / its"
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
# Of a request: in the API server, in the engine core, in both; and in a gateway before them.
_CPU_STEPS = (
    *(("read",), ("check",), ("compile",), ("check", "compile")),
    *(("read", "check", "compile"), ("gateway",)),
)
WALL = "schema to first mask, wall time"
_CONTAINS = frozenset({"contains", "minContains", "maxContains"})  # one rule

Answer = Mapping[str, Any]  # a worker's, of one schema


class StructuredPlan(msgspec.Struct, frozen=True):
    """The plan of a run."""

    file: Annotated[Path, flag("", is_argument=True)]
    compile_seconds: float = 20.0  # a compile that takes longer is a failure
    outlines_seconds: float = 10.0  # the same, for what takes longer most often
    memory_gib: int = 12  # of a worker's address space
    max_tokens: int = 4_000  # instances that are longer are left out
    max_schemas: int | None = None


def measure(plan: StructuredPlan, on_step: OnStep) -> Findings:
    """Judge every schema by every system. Raises BenchError, with the cure."""
    engine = of_vllm("python")  # which has xgrammar, too
    on_step("tokenizing")
    tokenize = vocabulary_of(str(PACKAGED_SMOLLM2)).ll_tokenizer.tokenize_str
    cases = read(plan.file, tokenize, plan.max_tokens, plan.max_schemas)
    answers: dict[str, list[Answer]] = {name: [] for name in SYSTEMS}
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        on_step("starting")
        pythons = {
            name: engine if name in BESIDE_ENGINE else Path(sys.executable) for name in SYSTEMS
        }
        workers = [stack.enter_context(judge(name, pythons[name], plan)) for name in SYSTEMS]
        for worker in workers:  # until it is ready: to start is no part of a compile
            versions |= worker.read()
        for done, case in enumerate(cases):
            on_step("schemas", done, len(cases))
            for worker in in_turn(workers, done):
                answers[worker.name].append(worker.ask(msgspec.to_builtins(case)))
    words = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    about = f"{len(cases)} schemas of {plan.file.name}, tokens of {PACKAGED_SMOLLM2.name}; {words}."
    return Findings(
        rows=list(rows_of(cases, answers)), about=[about], facts={"schemas": len(cases)}
    )


def judge(name: str, python: Path, plan: StructuredPlan) -> JsonWorker:
    """Return the worker of a system. It says the versions of its libraries when it is ready, and
    then answers each case."""
    seconds = plan.outlines_seconds if name.startswith("outlines") else plan.compile_seconds
    words = (name, PACKAGED_SMOLLM2, seconds, plan.memory_gib)
    command = [python, "-m", "inferway_bench.structured.worker", *words]
    return JsonWorker(name, command, with_sources())


# what was judged, counted


def rows_of(cases: Sequence[Case], answers: Mapping[str, Sequence[Answer]]) -> Iterator[Row]:
    """Yield what all systems have done with the cases."""
    for order, how in ORDERS.items():
        tallies = {
            name: [tally(case, answer, order) for case, answer in zip(cases, each, strict=True)]
            for name, each in answers.items()
        }
        for name, tallied in tallies.items():
            keys = {"instances": how, "system": name}
            yield Row("kept", keys, _kept(tallied), is_ours=name == OURS)
    for name, each in answers.items():
        yield from _compile_rows(name, each, answers.get(LLGUIDANCE, each))
        us = [ns / 1000 for answer in each for ns in answer.get("mask_ns", ())]
        yield Row("masks", {"system": name}, percentiles(us, *PERCENTILES), name == OURS)


def tally(case: Case, answer: Answer, order: str) -> Counter[str]:
    """Return what a system has done with one schema, as ones and numbers of instances."""
    taken = answer.get(order, [])
    pairs = list(zip(case.instances, taken, strict=False))
    valid = [took for one, took in pairs if one.valid]
    invalid = [took for one, took in pairs if not one.valid]
    let_through = [one for one, took in pairs if took and not one.valid]
    named = [(place, keyword) for place, keyword in answer.get("unenforced", [])]
    # one that was compiled and not judged, out of time, is not right
    is_judged = _is_compiled(answer) and len(taken) == len(case.instances)
    return Counter(
        {
            "compiled": _is_compiled(answer),
            "valid": len(valid),
            "valid accepted": sum(valid),
            "invalid": len(invalid),
            "invalid rejected": len(invalid) - sum(invalid),
            "all right": is_judged and all(valid) and not any(invalid),
            "refuse a valid one": not all(valid),
            "accept an invalid one": bool(let_through),
            "unnamed": not all(is_named(case.schema, one.text, named) for one in let_through),
        }
    )


def _is_compiled(answer: Answer) -> bool:
    return "seconds" in answer


def _kept(tallies: Sequence[Counter[str]]) -> dict[str, Value]:
    total = sum(tallies, Counter[str]())
    return {
        "compiled": total["compiled"],
        "valid accepted": f"{total['valid accepted']}/{total['valid']}",
        "invalid rejected": f"{total['invalid rejected']}/{total['invalid']}",
        **{name: total[name] for name in COUNTED},
    }


def _compile_rows(
    name: str, answers: Sequence[Answer], llguidances: Sequence[Answer]
) -> Iterator[Row]:
    """CPU times are of the schemas that llguidance compiles, too."""
    is_ours = name == OURS
    ms = [answer["seconds"] * 1000 for answer in answers if _is_compiled(answer)]
    keys = {"step": WALL, "system": name}
    yield Row("compile", keys, percentiles(ms, "p50", "p95", "max"), is_ours)
    pairs = list(zip(answers, llguidances, strict=True))
    both = [(a["cpu_ms"], b["cpu_ms"]) for a, b in pairs if _is_compiled(a) and _is_compiled(b)]
    theirs = [b["compile"] for _, b in both]
    for what in _CPU_STEPS if is_ours else [("compile",)]:
        times = [sum(one[step] for step in what) for one, _ in both]
        values = percentiles(times, "p50", "p95", "max")
        if is_ours and both:
            values[SUM_TO] = sum(times) / sum(theirs)
            values[P95_TO] = _percentile(times, 0.95) / _percentile(theirs, 0.95)
            values[WORST_TO] = max(own / other for own, other in zip(times, theirs, strict=True))
        yield Row("compile", {**keys, "step": f"{' + '.join(what)}, CPU time"}, values, is_ours)


def percentiles(values: Sequence[float], *names: str) -> dict[str, Value]:
    """Return the percentiles of these names; nothing of no values."""
    return {name: _percentile(values, PERCENTILES[name]) for name in names} if values else {}


def _percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all values is below, one of them."""
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))], 3)


# whether what an invalid instance violates is what a system has said that it does not enforce


def is_named(schema: str, instance: str, named: Sequence[tuple[str, str]]) -> bool:
    """Return whether each keyword that the instance violates is named at its place in the schema.
    What is said to fail in all of its branches is named if all that fails in one of them is."""
    try:
        validator = _validator(schema)
    except SpecError:
        return False
    errors = list(validator.iter_errors(json.loads(instance))) if validator is not None else []
    return bool(errors) and all(_is_named(error, named) for error in errors)


@lru_cache(maxsize=1)
def _validator(schema: str) -> Any:
    return validator_of(json.loads(schema))


def _is_named(error: Any, named: Sequence[tuple[str, str]]) -> bool:
    steps = list(error.schema_path)
    if any(_stands_there(steps, place, keyword) for place, keyword in named):
        return True
    branches = getattr(error.kind, "context", None) or ()
    return any(branch and all(_is_named(one, named) for one in branch) for branch in branches)


def _stands_there(steps: list[str | int], place: str, keyword: str) -> bool:
    same = _CONTAINS if keyword in _CONTAINS else {keyword}
    return any(str(steps[at]) in same and pointer(steps[:at]) == place for at in range(len(steps)))


# what is shown


def _count(name: str, head: str = "") -> Column:
    return Column(name, head, "{:.0f}")


TABLES = [
    Table(
        "kept", "Schemas of {schemas}, with instances {instances}", ["system"],
        [
            _count("compiled"), Column("valid accepted"), Column("invalid rejected"),
            _count("all right"), *map(_count, COUNTED[1:3]),
            _count("unnamed", "… with its keyword not named"),
        ],
        split=["instances"],
    ),
    Table(
        "compile", "Time of a compile, ms: CPU time of the schemas that llguidance compiles, too",
        ["step", "system"],
        [
            *map(Column, ("p50", "p95", "max")),
            *(Column(name, form="{:.2f}") for name in (SUM_TO, P95_TO, WORST_TO)),
        ],
    ),
    Table(
        "masks", "Time of a mask, µs", ["system"],
        [*map(Column, PERCENTILES)],
    ),
]  # fmt: skip
STRUCTURED = Benchmark(
    "structured",
    "Measure which of the JSON schemas in FILE are enforced, and how fast, beside llguidance, "
    "xgrammar, outlines-core and vLLM.\n\n"
    'FILE has a JSON object a line, {"id", "schema", "tests": [{"valid", "data"}]}. The stored '
    "results are of 300 schemas of https://github.com/guidance-ai/jsonschemabench (its folder "
    "maskbench/data), which states no licence and is not installed with Inferway: "
    "scripts/jsonschemabench_sample.py of Inferway's repository writes this file from a clone. The "
    "environment variable INFERWAY_VLLM_VENV names the virtual environment that has vLLM and "
    "xgrammar.",
    StructuredPlan, measure, TABLES,
    quick={"compile_seconds": 2.0, "outlines_seconds": 1.0, "max_schemas": 20},
    question="which real JSON schemas structured output enforces, and how fast, compared with four "
    "libraries",
    takes="half an hour",
    arguments="FILE",
)  # fmt: skip
structured = STRUCTURED.command()


_DEPTH = 12  # of references that are followed


class Instance(msgspec.Struct, frozen=True):
    """One document, in tokens."""

    valid: bool
    tokens: list[int]
    ordered: list[int] | None  # in schema order, where that is another text
    text: str


class Case(msgspec.Struct, frozen=True):
    """One schema, and what it is judged by."""

    id: str
    schema: str
    instances: list[Instance]


def read(
    path: Path,
    tokenize: Callable[[str], list[int]],
    max_tokens: int,
    max_schemas: int | None = None,
) -> list[Case]:
    """Return the schemas of a file, without instances of more than `max_tokens`. Raises BenchError
    where the file is not of that form."""
    try:
        lines = [json.loads(line) for line in unpacked(path).splitlines() if line.strip()]
        return [_case(line, tokenize, max_tokens) for line in lines[:max_schemas]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: not lines of schemas and tests: {error!r}") from error


def _case(line: Any, tokenize: Callable[[str], list[int]], max_tokens: int) -> Case:
    instances = []
    for test in line["tests"]:
        text = json.dumps(test["data"])
        other = json.dumps(in_schema_order(line["schema"], test["data"]))
        tokens = tokenize(text)
        if len(tokens) <= max_tokens:
            ordered = None if other == text else tokenize(other)
            instances.append(Instance(bool(test["valid"]), tokens, ordered, text))
    return Case(line["id"], json.dumps(line["schema"]), instances)


def in_schema_order(schema: Any, value: Any) -> Any:
    """Return the value with its properties in the order in which the schema lists them."""
    return _ordered([Document(schema).root], value)


def _ordered(nodes: list[Node], value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(list(_items(nodes, at, value)), one) for at, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    inner: dict[str, list[Node]] = {}
    extra: list[Node] = []
    for node in _parts(nodes, value):
        keywords = node.keywords
        for name, one in keywords.get("properties", {}).items():
            inner.setdefault(name, []).append(one)
        extra += keywords.get("patternProperties", {}).values()
        if "additionalProperties" in keywords:
            extra.append(keywords["additionalProperties"])
    required = [n for node in _parts(nodes, value) for n in node.keywords.get("required", ())]
    names = [name for name in dict.fromkeys([*inner, *required]) if name in value]
    names += [name for name in value if name not in names]
    return {name: _ordered([*inner.get(name, ()), *extra], value[name]) for name in names}


def _items(nodes: list[Node], at: int, value: Any) -> Iterator[Node]:
    for node in _parts(nodes, value):
        prefix = node.keywords.get("prefixItems", ())
        if at < len(prefix):
            yield prefix[at]
        elif "items" in node.keywords:
            yield node.keywords["items"]


def _parts(nodes: list[Node], value: Any, depth: int = _DEPTH) -> Iterator[Node]:
    """The schemas that speak of this value, in the order written: of alternatives, those that do
    not refuse it."""
    for node in nodes if depth else ():
        for word, rule in [*node.keywords.items()]:
            if word in ("$ref", "then", "else"):
                yield from _parts([rule], value, depth - 1)
            elif word == "allOf":
                yield from _parts(rule, value, depth - 1)
            elif word in ("anyOf", "oneOf"):
                left = [branch for branch in rule if takes(branch, value) is not False]
                yield from _parts(left, value, depth - 1)
            elif word in ("properties", "patternProperties", "additionalProperties"):
                yield _Only(node, word)
        yield _Only(node, "required", "items", "prefixItems")


class _Only(Node):
    """A node of which some keywords are looked at."""

    def __init__(self, node: Node, *words: str) -> None:
        super().__init__(node.document, node.raw, node.place)
        self.__dict__["keywords"] = {
            word: rule for word, rule in node.keywords.items() if word in words
        }
