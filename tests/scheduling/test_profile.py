"""filters -> scorers -> picker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.scheduling.tables import kv_aware

from inferway.errors import NoEndpointError
from inferway.model import BLIND, EXACT, PARTIAL, REPAIRING, STALE, Candidates, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.idle import idle
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.profile import Profile, Weighted
from inferway.scheduling.scorers import PrefixMatch, RecentWork, RelativeLoad


def table(
    *,
    matched: list[int] | None = None,
    blocks: int = 10,
    load: list[int] | None = None,
    recent: list[int] | None = None,
    states: list[int] | None = None,
    size: int = 2,
) -> Candidates:
    size = len(matched or load or recent or [0] * size)
    candidates = idle([Endpoint(f"e{i}", f"http://e{i}", i) for i in range(size)], 16)
    candidates.prompt_blocks[:] = blocks
    given = {
        "states": states,
        "in_flight": load,
        "recent_prefill_tokens": recent,
        "matched_blocks": matched,
        "weighted_matched_blocks": matched,
    }
    for name, values in given.items():
        if values is not None:
            getattr(candidates, name)[:] = values
    return candidates


REQUEST = LLMRequest(request_id="r", target_model="m", body=CompletionRequest(model="m", prompt=""))


def chosen(profile: ProfileHandler, candidates: Candidates) -> str:
    return profile.choose(REQUEST, candidates).targets[0].endpoint.engine


def test_prefix_match_is_the_share_of_blocks_held() -> None:
    assert PrefixMatch().score(REQUEST, table(matched=[5, 10, 0])).tolist() == [0.5, 1.0, 0.0]


def test_prefix_match_of_a_prompt_without_full_blocks_is_zero() -> None:
    assert PrefixMatch().score(REQUEST, table(blocks=0)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("state", [EXACT, PARTIAL, REPAIRING])
def test_what_is_true_as_far_as_we_know_counts_fully(state: int) -> None:
    assert PrefixMatch().score(REQUEST, table(matched=[4], states=[state])).tolist() == [0.4]


def test_what_nothing_confirms_counts_half_and_what_is_not_known_nothing() -> None:
    assert PrefixMatch().score(REQUEST, table(matched=[4, 4], states=[STALE, BLIND])).tolist() == [
        0.2,
        0.0,
    ]


def test_a_request_is_told_what_is_believed_however_little_it_counts() -> None:
    targets = kv_aware().choose(REQUEST, table(matched=[8, 3], states=[STALE, EXACT])).targets

    assert {t.endpoint.engine: t.matched_blocks for t in targets} == {"e0": 8, "e1": 3}


def test_an_engine_that_confirms_is_chosen_before_a_stale_one_that_has_as_much() -> None:
    assert chosen(kv_aware(), table(matched=[8, 8], states=[STALE, PARTIAL])) == "e1"
    assert chosen(kv_aware(), table(matched=[8, 3], states=[STALE, EXACT])) == "e0"


def test_relative_load_is_half_at_the_mean_and_clipped_at_the_ends() -> None:
    assert RelativeLoad().score(REQUEST, table(load=[10, 10])).tolist() == [0.5, 0.5]
    assert RelativeLoad().score(REQUEST, table(load=[0, 0, 30])).tolist() == [1.0, 1.0, 0.0]


def test_one_request_more_does_not_outweigh_a_cached_prompt() -> None:
    assert chosen(kv_aware(), table(matched=[10, 0], load=[2, 0])) == "e0"


def test_a_hot_engine_is_left_even_by_those_it_holds() -> None:
    assert chosen(kv_aware(), table(matched=[10, 0], load=[40, 10])) == "e1"


def test_without_a_match_the_least_loaded_wins() -> None:
    assert chosen(kv_aware(), table(load=[3, 1, 2])) == "e1"


def test_recent_work_is_half_at_the_mean_and_small_differences_hardly_count() -> None:
    assert RecentWork().score(REQUEST, table(recent=[100, 100])).tolist() == [0.5, 0.5]
    assert RecentWork().score(REQUEST, table(recent=[0, 0, 30_000])).tolist() == [1.0, 1.0, 0.0]
    assert abs(RecentWork().score(REQUEST, table(recent=[20, 0]))[0] - 0.5) < 0.02


def test_sessions_that_share_only_their_first_words_are_spread() -> None:
    assert chosen(kv_aware(), table(matched=[1, 0], recent=[2000, 0])) == "e1"
    assert chosen(kv_aware(), table(matched=[6, 0], recent=[2000, 0])) == "e0"


def test_equals_take_turns() -> None:
    profile, candidates = kv_aware(), table(size=4)

    counts = Counter(chosen(profile, candidates) for _ in range(40))

    assert counts == {"e0": 10, "e1": 10, "e2": 10, "e3": 10}


def test_targets_are_ranked_and_say_what_was_known_of_them() -> None:
    targets = kv_aware().choose(REQUEST, table(matched=[2, 8, 4, 0])).targets

    assert [t.endpoint.engine for t in targets] == ["e1", "e2", "e0"]
    assert [t.matched_blocks for t in targets] == [8, 4, 2]
    assert targets[0].prompt_blocks == 10


@dataclass(frozen=True)
class DropAll:
    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        return np.zeros(len(candidates.endpoints), dtype=bool)


@dataclass(frozen=True)
class KeepLast:
    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        last = np.zeros(len(candidates.endpoints), dtype=bool)
        last[-1] = True
        return last


def test_a_filter_narrows_before_scores_are_taken() -> None:
    profile = Profile(MaxScore(), (Weighted(PrefixMatch(), 1.0),), (KeepLast(),))

    assert chosen(profile, table(matched=[9, 1])) == "e1"


def test_the_filter_that_removed_the_last_endpoint_is_named() -> None:
    profile = Profile(MaxScore(), (), (DropAll(),))

    with pytest.raises(NoEndpointError, match="DropAll removed the last 2"):
        profile.choose(REQUEST, table())
