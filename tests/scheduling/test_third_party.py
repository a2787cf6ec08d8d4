"""Plugins of other packages are held to what plugins promise."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from prometheus_client.core import GaugeMetricFamily
from tests.scheduling.tables import candidates, request

from inferway.model import Candidates, Column, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.pickers import MaxScore
from inferway.scheduling.plugin import (
    RequestOutcome,
)
from inferway.scheduling.profile import Profile, Weighted
from inferway.scheduling.scorers import Queue
from inferway.scheduling.third_party import guarded


class Theirs:
    def __init__(self, column: object) -> None:
        self.column = column

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        if isinstance(self.column, Exception):
            raise self.column
        return self.column  # type: ignore[return-value]


def scores(column: object, weight: float = 1.0) -> list[float]:
    profile = Profile(MaxScore(), (Weighted(guarded(Theirs(column)), weight),))
    targets = profile.choose(request(), candidates(3)).targets
    by_row = {target.endpoint.holder: target.score for target in targets}
    return [by_row[row] for row in range(3)]


def test_ratings_are_brought_into_their_range() -> None:
    assert scores(np.array([-3.0, 0.5, 70.0])) == [0.0, 0.5, 1.0]
    assert scores(np.array([np.nan, np.inf, -np.inf]), 2.0) == [0.0, 2.0, 0.0]
    assert scores([0, 1, True]) == [0.0, 1.0, 1.0]


def test_its_own_column_is_not_written_to() -> None:
    own = np.array([0.1, 0.2, 0.3])

    scores(own, 5.0)

    assert own.tolist() == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (np.ones(2), "the plugin Theirs returned shape (2,), expected (3,)"),
        (1.0, "the plugin Theirs returned shape (), expected (3,)"),
        (
            KeyError("a secret prompt"),
            "the plugin Theirs failed; the gateway goes on without it\nKeyError",
        ),
    ],
)
def test_one_that_fails_rates_all_zero_and_the_log_has_it_once(
    column: object, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    profile = Profile(MaxScore(), (Weighted(guarded(Theirs(column)), 1.0), Weighted(Queue(), 1.0)))
    table = candidates(waiting=[9, 0, 9])

    with caplog.at_level(logging.ERROR):
        chosen = [profile.choose(request(), table).targets[0].endpoint.engine for _ in range(3)]

    assert chosen == ["e1"] * 3
    (message,) = caplog.messages
    assert message.startswith(says)
    assert "secret" not in message


def test_ours_is_called_as_it_is() -> None:
    ours = Queue()

    assert guarded(ours) is ours


class Fails:
    """In every role."""

    error = KeyError("a secret prompt")

    def fail(self, *_: object) -> Any:
        raise self.error

    keep = produce = refusal = families = fail
    on_attempt = on_head = on_first_chunk = on_end = fail

    def follow(self, *_: object) -> Any:
        return self


def test_one_that_fails_never_stands_in_the_way(caplog: pytest.LogCaptureFixture) -> None:
    plugin, table, target = Fails(), candidates(2), Target(candidates(1).endpoints[0], 1.0, 0, 0)

    assert guarded(plugin).keep(request(), table).tolist() == [True, True]
    guarded(plugin).produce(request(), table)
    assert guarded(plugin).refusal(request(), table) is None
    assert list(guarded(plugin).families()) == []
    follower = guarded(plugin).follow(request(), table, SchedulingResult((target,)))
    assert follower is not None
    assert follower.on_attempt(target, 0.0) == follower.on_head(200) == ()
    follower.on_first_chunk(1.0)
    follower.on_end(RequestOutcome("ok", 2.0))

    assert {message.partition(" failed")[0] for message in caplog.messages} == {"the plugin Fails"}
    assert "secret" not in caplog.text


class DoesNotFollow(Fails):
    def follow(self, *_: object) -> Any:
        return None


def test_one_that_does_not_follow_is_told_nothing() -> None:
    following = guarded(DoesNotFollow())

    assert following.follow(request(), candidates(1), SchedulingResult(())) is None


class Counting:
    def __init__(self, *families: object) -> None:
        self.given = families

    def families(self) -> Any:
        yield from self.given


def family(value: Any = 1.0, label: Any = "x", name: str = "acme_seen") -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, "Requests that were seen.", labels=["zone"])
    made.add_metric([label], value)
    return made


def test_families_of_its_own_are_on_the_page() -> None:
    assert list(guarded(Counting(family())).families()) == [family()]


@pytest.mark.parametrize(
    "faulty",
    [
        "acme_seen 1",
        family(value="many"),
        family(label=7),
        family(name="inferway_engine_up"),
        None,
    ],
    ids=["text", "value", "label", "name", "none"],
)
def test_families_that_cannot_be_shown_are_left_out_and_the_log_has_it_once(
    faulty: object, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = guarded(Counting(family(), faulty))

    assert [list(plugin.families()) for _ in range(2)] == [[], []]
    (message,) = caplog.messages
    assert message.startswith("the plugin Counting failed; the gateway goes on without it")
