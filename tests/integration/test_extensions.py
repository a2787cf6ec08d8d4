"""A gateway with extensions of installed packages."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.integration.conftest import StartFleet, simulated
from tests.scheduling.test_load import package

from inferway.errors import ConfigError
from inferway.extension import ENTRY_POINTS, Extension, Snapshot, merge, snapshots

PAGE = Path(__file__).parents[2] / "docs" / "extensions.md"
[EXAMPLE] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}

WATCHING = """
from prometheus_client.core import CounterMetricFamily
from inferway.extension import Extension

class Watching(Extension):
    def __init__(self):
        self.seen = []

    async def start(self, parts):
        self.seen.append("start")

    def on_request(self, routed, seconds):
        self.seen.append(routed.decision.reason)

    def on_answers(self, answers):
        for answer in answers:
            if answer.path == "/v1/chat/completions":
                self.seen.append(answer.status)

    def families(self):
        yield CounterMetricFamily("acme_seen", "", value=len(self.seen))

class Failing(Watching):
    def on_answers(self, answers):
        raise RuntimeError("no eyes today")

def watching(core):
    assert core.settings.engines and core.fleet.engines is not None
    return Watching()

def failing(core):
    return Failing()

def none(core):
    return None

def a_number(core):
    return 7
"""


async def test_the_example_of_the_docs_counts(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(monkeypatch, tmp_path, EXAMPLE, group=ENTRY_POINTS, slow="slow_answers")
    fleet = await start_fleet([simulated()])

    assert (await fleet.post("/v1/chat/completions", CHAT)).status == 200

    assert await fleet.metric("acme_slow_answers_total") == 0
    async with fleet.http.get(f"{fleet.url}/metrics") as page:
        assert "acme_slow_answers_total" in await page.text()


async def test_an_extension_sees_requests_and_answers(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package(monkeypatch, tmp_path, WATCHING, group=ENTRY_POINTS, watching="watching", none="none")
    fleet = await start_fleet([simulated()])

    for _ in range(2):
        assert (await fleet.post("/v1/chat/completions", CHAT)).status == 200

    assert await fleet.metric("acme_seen_total") == 1 + 2 * 2


async def test_an_extension_that_fails_harms_no_request_and_is_called_no_more(
    start_fleet: StartFleet,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    package(monkeypatch, tmp_path, WATCHING, group=ENTRY_POINTS, failing="failing")
    caplog.set_level(logging.INFO, "inferway")
    fleet = await start_fleet([simulated()])

    for _ in range(3):
        assert (await fleet.post("/v1/chat/completions", CHAT)).status == 200

    assert await fleet.metric("acme_seen_total") == 0
    failures = [each for each in caplog.messages if "has failed" in each]
    assert failures == ["the extension 'failing' has failed, and is not called again"]


def test_snapshots_go_to_the_extension_of_their_name() -> None:
    class Numbers(Extension):
        def __init__(self, number: int) -> None:
            self.number = number
            self.others: list[bytes] = []

        def snapshot(self, since: int) -> Snapshot | None:
            return Snapshot(b"%d" % (self.number + since), 7) if self.number else None

        def merge(self, parts: Sequence[bytes]) -> None:
            self.others = list(parts)

    class Odd(Numbers):
        name = "odd"

    class Even(Numbers):
        name = "even"

    ours = [Odd(1), Even(2), Extension()]
    seen = {"even": 10}
    merge(ours, [snapshots([Odd(3), Even(4)], seen), snapshots([Odd(5), Even(0), Extension()], {})])

    assert [each.others for each in ours if isinstance(each, Numbers)] == [[b"3", b"5"], [b"14"]]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("a_number", "returns a int, not an Extension"),
        ("nowhere", "fails: AttributeError"),
    ],
)
async def test_what_is_no_extension_is_refused_at_the_start(
    start_fleet: StartFleet,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    value: str,
    why: str,
) -> None:
    package(monkeypatch, tmp_path, WATCHING, group=ENTRY_POINTS, odd=value)

    with pytest.raises(ConfigError, match=why):
        await start_fleet([simulated()])
