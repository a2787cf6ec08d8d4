"""Which model a request is for."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from inferway.config import ModelRewrite, RewriteTarget
from inferway.routing.rewrite import Rewrites


def rule(*targets: tuple[str, int], models: tuple[str, ...] = ()) -> ModelRewrite:
    found = [RewriteTarget(model=model, weight=weight) for model, weight in targets]
    return ModelRewrite(models=list(models), targets=found)


def card(name: str, length: int | None) -> dict[str, Any]:
    return {"id": name, "object": "model", "max_model_len": length}


def test_without_a_rule_a_request_is_for_the_model_it_names() -> None:
    assert Rewrites().target("m") == "m"
    assert Rewrites([rule(("x", 1), models=("other",))]).target("m") == "m"


def test_the_first_rule_that_matches_decides() -> None:
    rules = [rule(("a", 1), models=("m", "n")), rule(("b", 1), models=("n",)), rule(("c", 1))]
    rewrites = Rewrites(rules)

    assert [rewrites.target(name) for name in ("m", "n", "z")] == ["a", "a", "c"]


def test_targets_are_drawn_in_proportion_to_their_weights() -> None:
    rewrites = Rewrites([rule(("a", 1), ("b", 3))], Random(0))

    drawn = Counter(rewrites.target("m") for _ in range(4_000))

    assert drawn.keys() == {"a", "b"}
    assert 2_890 < drawn["b"] < 3_110  # 3,000, four standard deviations around


def test_a_rules_name_is_listed_like_its_first_target_and_no_longer_than_any() -> None:
    rules = [rule(("a", 1), ("b", 1), ("gone", 1), models=("m",)), rule(("a", 1), models=("a",))]
    served = {"a": card("a", 100), "b": card("b", 50)}

    assert Rewrites(rules).cards(served) == {"m": card("m", 50), "a": card("a", 100)}


def test_names_that_lead_nowhere_or_are_not_said_are_not_listed() -> None:
    rules = [rule(("gone", 1), models=("m",)), rule(("a", 1))]

    assert Rewrites(rules).cards({"a": card("a", None)}) == {}
