from __future__ import annotations

from dataclasses import replace

from tests.routing.structured_gate.doubles import (
    CHAT,
    Engines,
    Words,
    endpoints,
    make_gate,
    schema,
    target,
)
from tests.scheduling.tables import candidates, request

from inferway.routing.structured_gate.costs import LEAST_MS, MAX_SPECS, CompileCosts
from inferway.routing.structured_gate.shape import Shape
from inferway.scheduling.columns import COMPILE_MS
from inferway_structured.grammar import Verdict
from inferway_structured.spec import Spec


def is_ours(engine: str) -> bool:
    return engine != "stock"


def test_an_engine_that_has_not_seen_a_slow_spec_has_it_to_compile() -> None:
    costs = CompileCosts()
    costs.took("slow", 3000.0)
    costs.see("e0", "slow")

    missing = costs.missing_ms(["slow", "quick"], endpoints("e0", "e1", "stock"), is_ours)

    assert missing is not None
    assert missing.tolist() == [0.0, 3000.0, 0.0]


def test_what_takes_a_millisecond_bends_nothing() -> None:
    costs = CompileCosts()
    costs.took("quick", LEAST_MS - 1)

    assert costs.missing_ms(["quick"], endpoints("e0"), is_ours) is None


def test_what_an_engine_says_later_counts() -> None:
    costs = CompileCosts()
    costs.took("k", 100.0)
    costs.took("k", 1.0)

    assert costs.missing_ms(["k"], endpoints("e0"), is_ours) is None


def test_a_new_engine_by_an_old_name_has_nothing_compiled() -> None:
    costs = CompileCosts()

    assert costs.see("e0", "k")
    assert not costs.see("e0", "k")
    costs.forget("e0")
    assert costs.see("e0", "k")


def test_what_is_remembered_is_bounded() -> None:
    costs = CompileCosts()
    for number in range(MAX_SPECS + 10):
        costs.took(str(number), 100.0)
        costs.see("e0", str(number))

    assert costs.missing_ms(["0"], endpoints("e0"), is_ours) is None
    assert costs.see("e0", "0")
    assert not costs.see("e0", str(MAX_SPECS + 9))


class Slow(Words):
    """Every spec takes 3 s to compile."""

    def verdict(self, spec: Spec) -> Verdict:
        return replace(super().verdict(spec), compile_seconds=3.0)


async def test_the_shape_adds_what_each_engine_has_to_compile() -> None:
    gate = make_gate(Engines(plugins={"e0", "e1"}), Slow())
    first = await gate.check(CHAT, schema("slow"), 100, endpoints("e0", "e1"))
    assert isinstance(first, Shape)
    first.on_attempt(target("e0"), 0.0)
    second = await gate.check(CHAT, schema("slow"), 100, endpoints("e0", "e1"))
    assert isinstance(second, Shape)
    table = candidates(2)

    second.produce(request(), table)

    compiling = table.get(COMPILE_MS)
    assert compiling is not None
    assert compiling.tolist() == [0.0, 3000.0]
