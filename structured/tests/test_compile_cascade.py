"""The manager with the real libraries and a real tokenizer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from structured.tests.compiling import PATIENT, SECONDS, smollm2

from inferway_structured.backends.cascade import Cascade
from inferway_structured.compile.compilations import Compilations
from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec


@pytest.fixture(scope="module")
def cascade() -> Cascade:
    return Cascade(smollm2())


@pytest.fixture
def manager(cascade: Cascade) -> Iterator[Compilations]:
    made = Compilations(cascade.compile, PATIENT)
    yield made
    made.close()


def schema(name: str) -> Spec:
    tree = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    return Spec(Kind.JSON, json.dumps(tree, separators=(",", ":")))


def first_mask(manager: Compilations, spec: Spec) -> bytes:
    row = np.zeros(smollm2().num_words, np.int32)
    manager.compile(spec).result(SECONDS).start().fill(row)
    return row.tobytes()


SPECS = [
    *(schema(f"name{n}") for n in range(20)),
    Spec(Kind.JSON_OBJECT, ""),
    Spec(Kind.REGEX, "[0-9]{4}-[a-f]+"),
    Spec(Kind.CHOICE, '["yes","no"]'),
    Spec(Kind.GRAMMAR, 'start: "a" /[0-9]+/'),
]


def test_threads_that_ask_for_everything_get_the_same_and_it_is_built_once(
    manager: Compilations,
) -> None:
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(first_mask, manager, spec) for _ in range(8) for spec in SPECS]
        masks = [each.result(SECONDS) for each in asked]

    assert masks == masks[: len(SPECS)] * 8
    counts = manager.snapshot()
    assert sum(counts["requests"].values()) == 8 * len(SPECS)
    assert manager.counts.compile_wall_seconds.count() == len(SPECS)
    assert {held.key for held in manager.held_specs()} == {spec.key for spec in SPECS}


def test_what_the_library_refuses_is_refused_to_each_who_asks(manager: Compilations) -> None:
    bad = Spec(Kind.REGEX, "(?=a)b")

    errors = [manager.compile(bad).exception(SECONDS) for _ in range(3)]

    assert all(isinstance(error, SpecError) for error in errors)
    assert manager.counts.cache_hits.value("refused") == 2
    assert first_mask(manager, SPECS[0])


def test_hostile_specs_hold_up_nobody_for_long(manager: Compilations) -> None:
    hostile = [
        Spec(Kind.REGEX, "(a|b)*a(a|b){14}"),
        Spec(Kind.REGEX, "((a{1,50}){1,50}){1,50}"),
        Spec(Kind.REGEX, ".{1,50000}"),
        Spec(Kind.JSON, '{"type":"array","items":{"type":"integer"},"maxItems":100000}'),
        Spec(Kind.JSON, json.dumps({"enum": [f"value {n}" for n in range(20_000)]})),
    ]

    threads = threading.active_count()
    futures = [manager.compile(spec) for spec in hostile]
    mask = first_mask(manager, SPECS[0])

    assert mask
    for future in futures:
        error = future.exception(SECONDS)
        assert error is None or isinstance(error, SpecError)
    assert threading.active_count() < threads + 10
