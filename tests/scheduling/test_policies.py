"""What each word of `--policy` does."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.scheduling.tables import candidates, profile_of, request

from inferway.config import EngineSettings, KvTransferSettings, Policy, ServeSettings
from inferway.scheduling.expected_ttft.plugin import TYPE as EXPECTED_TTFT
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.load import CONFIGURATIONS, POLICIES, scheduling_of
from inferway.scheduling.profile import Weighted
from inferway.scheduling.scheduling import Scheduling
from inferway.scheduling.scorers import PrefixMatch, RecentWork, RelativeLoad


def by(policy: Policy | None, *, scoring: bool = True) -> Scheduling:
    engines = [EngineSettings(url="http://h:1")]
    return scheduling_of(ServeSettings(engines=engines, policy=policy, scoring=scoring))


def sent(scheduling: Scheduling, count: int, held: list[int], load: list[int]) -> list[str]:
    """Where requests for a prompt of ten blocks go, one after the other, on a fleet that stays as
    it is: `held` blocks and `load` requests of each engine."""
    table = candidates(
        matched_blocks=held, weighted_matched_blocks=held, in_flight=load, prompt_blocks=10
    )
    choices = [scheduling.chooser.choose(request(), table) for _ in range(count)]
    return [choice.targets[0].endpoint.engine for choice in choices]


def test_every_word_of_the_setting_is_known_here() -> None:
    assert {*CONFIGURATIONS, "least-load"} == {*POLICIES}


def test_round_robin_takes_turns_whatever_engines_hold_and_have_to_do() -> None:
    engines = sent(by("round-robin"), 6, held=[8, 0, 0], load=[0, 5, 9])

    assert sorted(engines[:3]) == ["e0", "e1", "e2"]
    assert engines[:3] == engines[3:]


def test_least_load_takes_the_engine_with_the_fewest_requests_whatever_engines_hold() -> None:
    assert sent(by("least-load"), 2, held=[8, 0, 0], load=[3, 2, 9]) == ["e1", "e1"]


def test_kv_aware_weighs_the_prefix_load_and_recent_work() -> None:
    chooser = profile_of(by("kv-aware"))

    assert [*chooser.scorers] == [
        Weighted(PrefixMatch(), 1.0),
        Weighted(RelativeLoad(), 2.0),
        Weighted(RecentWork(), 0.4),
    ]
    assert sent(by("kv-aware"), 1, held=[10, 0], load=[2, 0]) == ["e0"]
    assert sent(by("kv-aware"), 1, held=[10, 0], load=[40, 10]) == ["e1"]


@pytest.mark.parametrize("policy", ["expected-ttft", None])
def test_expected_ttft_is_the_default(policy: Policy | None) -> None:
    chooser = profile_of(by(policy))

    [scorer] = chooser.scorers
    assert type(scorer.scorer).__module__.startswith("inferway.scheduling.expected_ttft")
    assert CONFIGURATIONS["expected-ttft"] == {"plugins": [{"type": EXPECTED_TTFT.name}]}


def test_without_scoring_and_without_a_word_the_least_loaded_engine_is_taken() -> None:
    assert sent(by(None, scoring=False), 2, held=[8, 0], load=[3, 2]) == ["e1", "e1"]


@pytest.mark.parametrize(
    ("legs", "picks", "has_legs"),
    [
        ("auto", False, True),
        ("gateway", False, True),
        ("off", False, False),
        ("sidecar", False, False),
        ("auto", True, False),
    ],
)
def test_a_request_goes_in_two_legs_where_we_send_both(
    legs: Literal["auto", "gateway", "sidecar", "off"], picks: bool, has_legs: bool
) -> None:
    engines = [EngineSettings(url="http://h:1")]
    settings = ServeSettings(engines=engines, kv_transfer=KvTransferSettings(legs=legs))
    [plugin] = scheduling_of(settings, has_queue=not picks).producers
    assert isinstance(plugin, ExpectedTtft)
    assert plugin.has_legs == has_legs
