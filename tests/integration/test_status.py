"""`inferway status` and `inferway top`, before a gateway and simulated engines."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from rich.console import Console
from tests.fork_server import INFERWAY
from tests.integration.conftest import LONG, StartFleet, until

from inferway.cli.fleet_state import EngineState, FleetState, ModelState, TransferState, quantile
from inferway.cli.fleet_table import fleet_table, local_since, rates
from inferway.model import Alarm


async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, [str(INFERWAY), *arguments], capture_output=True, text=True, check=False
    )


def engine(name: str = "h:1", prompt_tokens: int = 0) -> EngineState:
    return EngineState(
        name=name,
        url=f"http://{name}",
        state="up",
        cache="exact",
        in_flight=123,
        running=256,
        waiting=1000,
        kv_usage=1.0,
        blocks=1_234_567,
        prompt_tokens=prompt_tokens,
        matched_share=1.0,
        delivered_share=0.995,
        event_age_seconds=3600.0,
        problems=[],
    )


def state(*engines: EngineState, requests: int = 0, why: str | None = None) -> FleetState:
    return FleetState("http://h:8080", why is None, why, requests, list(engines), [])


def drawn(fleet: FleetState, width: int, before: FleetState | None = None) -> list[str]:
    console = Console(width=width, color_system=None)
    rate = None if before is None else rates(before, fleet, 2.0)
    with console.capture() as captured:
        console.print(fleet_table(fleet, width, rate))
    return captured.get().splitlines()


async def test_status_shows_each_engine_and_model_and_exits_0_when_ready(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)
    await fleet.chat(LONG)

    done = await run("status", fleet.url)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready")
    assert "2 of 2 engines up" in done.stdout
    assert "prompts" in done.stdout
    assert "kv-aware" not in done.stdout  # which is a policy, too


async def test_status_as_json_has_what_the_gateway_knows(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await fleet.chat(LONG)
    await fleet.chat(LONG)
    [simulator] = fleet.engines

    async def told() -> bool:
        [one] = json.loads((await run("status", fleet.url, "--json")).stdout)["engines"]
        return bool(one["blocks"] == len(simulator.cached_blocks()) > 0)

    await until(told)
    found = json.loads((await run("status", fleet.url, "--json")).stdout)

    [one] = found["engines"]
    assert (found["ready"], found["why"], found["requests"]) == (True, None, 2)
    assert (one["url"], one["state"], one["cache"]) == (simulator.url, "up", "exact")
    assert 0 < one["matched_share"] == one["delivered_share"] < 1
    assert one["event_age_seconds"] >= 0


async def test_status_tells_requests_and_times_to_the_first_token_by_model(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    body = {"model": "smollm2", "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
    url = f"{fleet.url}/v1/chat/completions"
    async with fleet.http.post(url, json={**body, "stream": True}) as answer:
        await answer.read()

    found = json.loads((await run("status", fleet.url, "--json")).stdout)

    told = {model["name"]: model for model in found["models"]}
    assert told["smollm2"]["requests"] == 1
    assert 0 < told["smollm2"]["ttft_p50"] < told["smollm2"]["ttft_p95"]


async def test_status_exits_1_and_says_why_when_no_engine_answers(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)
    await fleet.engines[0].stop()

    async def is_down() -> bool:
        return (await run("status", fleet.url)).returncode == 1

    await until(is_down)
    done = await run("status", fleet.url)

    assert "NOT READY" in done.stdout
    assert "not ready: no engine answers" in done.stdout
    assert " down " in done.stdout


def test_forty_engines_that_are_down_are_one_alarm_and_one_line() -> None:
    alarm = Alarm(
        *("fail", "40 engines (h:501 to h:540)", "do not answer", "look at the switch"),
        since=0.0,
        detail="no answer for 4.1 s",
    )
    down = [replace(engine(f"h:{n}"), state="down", outage="silent") for n in range(501, 541)]
    fleet = replace(state(engine(), *down), alarms=[alarm])

    shown = drawn(fleet, 200)

    assert len(shown) == 6
    assert "and 40 engines that are down" in shown
    assert any(
        line.startswith("40 engines (h:501 to h:540): do not answer since") for line in shown
    )
    assert any("fix: look at the switch" in line for line in shown)


def test_the_table_says_how_few_engines_are_out_and_for_how_long() -> None:
    down = replace(engine("h:2"), state="down", outage="stalled", since_seconds=211.0)

    assert [line.split()[1:3] for line in drawn(state(engine(), down), 80)[2:4]] == [
        ["up", "-"],
        ["down", "4m"],
    ]
    assert "stalled" in drawn(state(engine(), down), 160)[3]


def test_since_when_is_said_by_the_readers_clock() -> None:
    now = datetime(2026, 11, 29, 12, 57, 42, tzinfo=timezone(timedelta(hours=1)))

    assert local_since(now.timestamp() - 12, now) == "since 12:57:30 (12 s)"
    assert local_since(now.timestamp() - 86_400, now) == "since 2026-11-28 12:57:42 (1 d)"


def test_the_table_shows_who_hands_blocks_to_whom_where_anybody_does() -> None:
    many = [f"10.0.0.{n}:8000" for n in range(9)]
    giver = replace(engine("p"), kv_transfer=TransferState("nixl", "both", 30.0, ["d"]))
    taker = replace(engine("d"), kv_transfer=TransferState("nixl", "decode", 7.5, []))
    busy = replace(engine("q"), kv_transfer=TransferState("nixl", "prefill", 30.0, many))

    shown = drawn(state(giver, taker, busy), 80)

    assert [line.split() for line in shown[-4:]] == [
        ["engine", "role", "connector", "lease", "hands", "blocks", "to"],
        ["p", "both", "nixl", "30s", "d"],
        ["d", "decode", "nixl", "7.5s", "nobody"],
        ["q", "prefill", "nixl", "30s", "9", "engines"],
    ]
    assert not any("connector" in line for line in drawn(state(engine()), 80))


@pytest.mark.parametrize("command", ["status", "top"])
async def test_a_gateway_that_cannot_be_asked_is_exit_status_2_with_the_cure(
    command: str,
) -> None:
    with socket.socket() as taken:  # and nobody listens
        taken.bind(("127.0.0.1", 0))
        done = await run(command, f"http://127.0.0.1:{taken.getsockname()[1]}")

    assert (done.returncode, done.stdout) == (2, "")
    assert "Connection refused; start a gateway there (inferway serve)" in done.stderr


async def test_an_engine_in_place_of_a_gateway_is_told(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    done = await run("status", fleet.engines[0].url)

    assert done.returncode == 2
    assert "give the URL of a gateway" in done.stderr


async def test_an_admin_key_is_asked_for_and_sent(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS_KEY", "secret")
    fleet = await start_fleet(1, admin_key_env="STATUS_KEY")

    without = await run("status", fleet.url)
    with_it = await run("status", fleet.url, "--admin-key-env", "STATUS_KEY")

    assert without.returncode == 2
    assert "give --admin-key-env" in without.stderr
    assert with_it.returncode == 0


async def test_a_variable_that_is_not_set_is_named() -> None:
    done = await run("status", "--admin-key-env", "NO_SUCH_KEY")

    assert done.returncode == 2
    assert "'NO_SUCH_KEY' is not set in the environment" in done.stderr


async def test_top_without_a_terminal_prints_one_table_after_the_other(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1)

    done = await run("top", fleet.url, "--interval", "0.1", "--count", "2")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 of 1 engines up") == 2
    assert "\x1b" not in done.stdout
    assert done.stdout.count("tok/s") == 1  # nothing to compare the first with


@pytest.mark.parametrize("width", [80, 180])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    before = state(engine("a-very-long-engine-name.example.com:8000"))
    now = state(engine("a-very-long-engine-name.example.com:8000", 10_000))

    lines = drawn(now, width, before)

    assert max(len(line.rstrip()) for line in lines) <= width
    [row] = [line for line in lines if line.startswith("a-very-")]
    assert row.isprintable()
    for number in ("256", "1000", "100%", "1,234,567", "60m", "5,000"):
        assert number in row
    assert ("http://a-very" in row) == (width == 180)


def test_rates_are_of_what_has_changed_each_second() -> None:
    before = state(engine("a", 100), requests=10)
    now = state(engine("a", 300), engine("new", 50), requests=16)

    found = rates(before, now, 2.0)

    assert (found.requests, found.prompt_tokens) == (3.0, {"a": 100.0})


def test_a_gateway_that_was_started_anew_has_no_negative_rates() -> None:
    found = rates(state(engine("a", 100), requests=10), state(engine("a", 0)), 2.0)

    assert (found.requests, found.prompt_tokens) == (0.0, {})


def test_a_name_with_markup_is_shown_as_it_is() -> None:
    one = ModelState("[red]m[/]", "kv-aware", None, 0.1, None)
    shown = drawn(FleetState("http://h", True, None, 0, [engine()], [one]), 80)

    assert any("[red]m[/]" in line and "100 ms" in line for line in shown)


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([], 0.5, None),
        ([(1.0, 0), (float("inf"), 0)], 0.5, None),
        ([(1.0, 10), (2.0, 20), (float("inf"), 20)], 0.5, 1.0),
        ([(1.0, 10), (2.0, 20), (float("inf"), 20)], 0.75, 1.5),
        ([(1.0, 10), (float("inf"), 20)], 0.95, 1.0),
    ],
)
def test_a_quantile_is_what_prometheus_would_say(
    buckets: list[tuple[float, float]], share: float, expected: float | None
) -> None:
    assert quantile(buckets, share) == expected
