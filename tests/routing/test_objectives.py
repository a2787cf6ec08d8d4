"""What headers ask of the gateway."""

from __future__ import annotations

import pytest

from inferway.errors import InvalidRequestError
from inferway.openai_api.llm_request import Objectives
from inferway.routing.objectives import objectives

PRIORITIES = {"batch": -1, "chat": 5}


@pytest.mark.parametrize("name", [b"x-gateway-inference-objective", b"x-llm-d-inference-objective"])
@pytest.mark.parametrize(
    ("objective", "priority"), [(b"batch", -1), (b"chat", 5), (b"unheard of", 0), (b"\xff", 0)]
)
def test_an_objective_has_a_priority(name: bytes, objective: bytes, priority: int) -> None:
    found = objectives(((b"accept", b"*/*"), (name, objective)), PRIORITIES)

    assert found == Objectives(priority=priority)


@pytest.mark.parametrize("prefix", [b"x-slo-", b"x-llm-d-slo-"])
def test_times_are_read_in_both_spellings(prefix: bytes) -> None:
    headers = ((prefix + b"ttft-ms", b"250"), (prefix + b"tpot-ms", b"12.5"))

    assert objectives(headers, {}) == Objectives(ttft_ms=250.0, tpot_ms=12.5)


def test_the_last_session_that_is_named_counts() -> None:
    headers = ((b"x-session-id", b"first"), (b"accept", b"*/*"), (b"x-session-id", b"last"))

    assert objectives(headers, PRIORITIES, given=7) == Objectives(priority=7, session=b"last")


def test_headers_that_ask_nothing_are_nothing() -> None:
    assert objectives(((b"x-gateway-other", b"1"), (b"content-type", b"x")), {}) == Objectives()


@pytest.mark.parametrize("name", [b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms"])
@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"soon", b"nan", b"inf"])
def test_a_time_that_cannot_be_is_named_as_it_was_sent(name: bytes, value: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="is no positive number of milliseconds") as e:
        objectives(((name, value),), {})

    assert e.value.param == name.decode()
    assert str(e.value).startswith(f"header {name.decode()}: {value.decode()!r}")
