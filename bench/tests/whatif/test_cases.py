"""What is asked, and which fleets and policies that means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.tests.whatif.recordings import FLEET, TRUE
from hypothesis import given
from hypothesis import strategies as st

from inferway_bench.processes import BenchError
from inferway_bench.whatif.replay import parse_time
from inferway_bench.whatif.run import (
    AS_RECORDED,
    Variant,
    WhatIfPlan,
    base_case,
    cache_tokens,
    changed_cases,
)

SIZE = 128


def asked(recorded: str = "expected-ttft", **flags: Any) -> list[Variant]:
    return changed_cases(WhatIfPlan(Path(), **flags), base_case(recorded, FLEET), SIZE)


def test_without_a_change_the_other_policies_of_serve_are_compared() -> None:
    assert [each.name for each in asked()] == ["kv-aware", "round-robin", "least-load"]


def test_changes_are_combined_and_named() -> None:
    found = asked(engines=(3, 4), cache=("2x",), policy=("expected-ttft", "round-robin"))

    assert [each.name for each in found] == [
        "3 engines instead of 4, caches of 2x",
        "caches of 2x",
        "round-robin, 3 engines instead of 4, caches of 2x",
        "round-robin, caches of 2x",
    ]
    assert {each.fleet.engine.cache_tokens for each in found} == {
        TRUE.cache_tokens * 2 // SIZE * SIZE
    }
    assert [each.fleet.num_engines for each in found] == [3, 4, 3, 4]


def test_what_is_as_it_was_is_no_case() -> None:
    assert asked(engines=(4,), cache=("1x",), gateways=(1,)) == []


def test_a_policy_without_a_simulation_is_replayed_by_its_choices() -> None:
    base = base_case("my-plugin", FLEET)

    assert not base.is_known
    assert base.case.policy == AS_RECORDED
    assert [each.policy for each in asked("my-plugin", engines=(2,))] == ["expected-ttft"]


def test_prefill_apart_is_for_the_policy_that_decides_it() -> None:
    assert [each.policy for each in asked(prefill_apart=True)] == ["learned"]
    with pytest.raises(BenchError, match="fix: the policy expected-ttft") as refused:
        asked("round-robin", prefill_apart=True)
    assert "--" not in str(refused.value)  # the gateway's page shows it, too


@given(st.integers(1, 10**6))
def test_a_cache_is_said_in_blocks_or_as_a_multiple(blocks: int) -> None:
    assert cache_tokens(str(blocks), 7, SIZE) == blocks * SIZE
    assert cache_tokens("2x", blocks * SIZE, SIZE) == 2 * blocks * SIZE


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "0x", "nanx", "infx", "2y", "1e3", "big"])
def test_a_cache_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BenchError, match="expected a number of blocks"):
        cache_tokens(text, 1_000, SIZE)


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_time("2026-11-27T06:00:00") == parse_time("2026-11-27T07:00:00+01:00")
    assert parse_time("1700000000.5") == 1_700_000_000.5
    with pytest.raises(BenchError, match="--from 'yesterday'"):
        _ = WhatIfPlan(Path(), since="yesterday").source
    with pytest.raises(BenchError, match="--to 'nan'"):
        _ = WhatIfPlan(Path(), until="nan").source


def test_an_unknown_policy_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BenchError, match="round-robin"):
        asked(policy=("fastest",))
