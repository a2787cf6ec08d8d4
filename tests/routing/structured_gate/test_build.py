from __future__ import annotations

import logging

import pytest
from tests.routing.structured_gate.doubles import Clock, Engines, schema

from inferway.config import StructuredSettings
from inferway.errors import ConfigError
from inferway.model import Endpoint
from inferway.routing.structured_gate.build import build_gate
from inferway.routing.structured_gate.gate import Gate


async def post(_: Endpoint, __: bytes) -> tuple[int, bytes]:
    return 202, b"{}"


def build(settings: StructuredSettings, *missing: str) -> Gate | None:
    return build_gate(
        settings,
        Engines(),
        post,
        clock=Clock(),
        is_busy=lambda: False,
        find=lambda name: None if name in missing else name,
    )


def test_a_gate_that_is_to_check_nothing_is_none() -> None:
    assert build(StructuredSettings(check=False)) is None


async def test_without_the_extra_requests_pass_and_the_first_that_wants_it_is_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        gate = build(StructuredSettings(), "llguidance")
        assert gate is not None
        assert await gate.check("/v1/chat/completions", {"messages": []}, 10, []) is None
        assert caplog.records == []
        for _ in range(2):
            assert await gate.check("/v1/chat/completions", schema("a"), 10, []) is None

    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.message == (
        "a request asks for the shape of its answer, and passes unchecked, as all of its kind do:"
        " llguidance cannot be imported; pip install 'inferway[structured]', or set"
        " structured.check: false"
    )
    await gate.close()


@pytest.mark.parametrize("setting", ["trial_compile", "report_validity"])
def test_what_was_asked_for_and_cannot_be_had_ends_the_start(setting: str) -> None:
    settings = StructuredSettings(
        trial_compile=setting == "trial_compile", report_validity=setting == "report_validity"
    )

    with pytest.raises(ConfigError, match=f"structured.{setting}: jsonschema_rs cannot be"):
        build(settings, "jsonschema_rs")


@pytest.mark.parametrize("per_second", [0.0, 1.0])
async def test_engines_are_told_in_advance_unless_that_is_switched_off(per_second: float) -> None:
    gate = build(StructuredSettings(warm_per_second=per_second))

    assert gate is not None
    assert (gate.warmer is not None) == bool(per_second)
    await gate.close()
