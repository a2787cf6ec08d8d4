"""What a gateway says of its traffic is read, and judged with a cure for each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from inferway.doctor.facts import BreakerFound, BreakersReport, GatewayReport
from inferway.doctor.gateway import ask_gateway
from inferway.doctor.rules import CheckResult, Level
from inferway.doctor.traffic_rules import judge_gateway
from inferway.telemetry.conversations import __doc__ as CAUSES
from inferway.telemetry.traffic_counts import TrafficCounts

from .servers import serving

KEY = "s3cret"


def told(**conversations: Any) -> dict[str, Any]:
    """As a gateway tells it."""
    found = TrafficCounts(by_prompt=7).told()
    found["conversations"] |= conversations
    return found


def ask(said: object, key: str | None = KEY) -> GatewayReport:
    async def traffic(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        return web.json_response(said)

    async def run() -> GatewayReport | None:
        app = web.Application()
        app.router.add_get("/admin/traffic", traffic)
        async with serving(app) as url:
            return await ask_gateway(f"{url}/", key)

    found = asyncio.run(run())
    assert found is not None
    return found


def findings(said: object) -> list[CheckResult]:
    return list(judge_gateway(ask(said)))


def broken(cause: str, in_first_block: int = 0) -> dict[str, Any]:
    return {
        "cause": cause,
        "client": "litellm",
        "turns": 31,
        "in_first_block": in_first_block,
    }


def test_the_alarms_of_a_gateway_are_read_and_an_older_one_tells_none() -> None:
    async def run(*, tells: bool) -> GatewayReport | None:
        app = web.Application()
        app.router.add_get("/admin/traffic", _answering(told()))
        if tells:
            app.router.add_get("/admin/alarms", _answering({"alarms": [ALARM]}))
        async with serving(app) as url:
            return await ask_gateway(url)

    found, older = asyncio.run(run(tells=True)), asyncio.run(run(tells=False))

    assert found is not None
    assert found.alarms is not None
    assert [(each.subject, each.since) for each in found.alarms] == [("e", 12.0)]
    assert older is not None
    assert older.error is None
    assert older.alarms is None


ALARM = {"level": "fail", "subject": "e", "evidence": "does not answer", "since": 12.0}


def _answering(body: object) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def test_what_a_gateway_tells_is_read() -> None:
    found = ask(told(with_tools=1, with_inline_system=2))

    assert found.error is None
    assert found.traffic is not None
    assert (found.traffic.by_prompt, found.has_tools, found.has_inline_system) == (7, True, True)
    assert not ask(told()).has_tools
    assert not ask(told()).has_inline_system


def test_no_gateway_is_asked_if_none_is_given() -> None:
    assert asyncio.run(ask_gateway(None)) is None


@pytest.mark.parametrize(
    ("said", "key", "why"),
    [
        (told(), None, "401; it wants the admin key: give --admin-key-env"),
        ({"engines": []}, KEY, "no answer of a gateway"),
    ],
)
def test_a_gateway_that_does_not_tell_fails_with_the_cure(
    said: object, key: str | None, why: str
) -> None:
    (finding,) = judge_gateway(ask(said, key))

    assert finding.level is Level.FAIL
    assert why in finding.evidence


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "http://127.0.0.1:1/admin/traffic: Connection refused"),
        ("127.0.0.1:1", "'127.0.0.1:1': expected http://HOST:PORT"),
    ],
)
def test_nobody_there_fails(url: str, said: str) -> None:
    found = asyncio.run(ask_gateway(url))

    assert found is not None
    (finding,) = judge_gateway(found)
    assert finding.level is Level.FAIL
    assert said in finding.evidence


def test_requests_by_load_are_told_with_path_client_and_cure() -> None:
    by_load = [
        {"path": path, "client": client, "reason": reason, "requests": 5}
        for path, client, reason in (
            ("/v1/responses", "codex", "response-items"),
            ("/v1/chat/completions", "other", "helper-busy"),
            ("/tokenize", "curl", "unread"),
        )
    ]

    summary, codex, busy, tokenize = findings({**told(), "by_load": by_load})

    assert summary.evidence == "7 requests went by their prompts, 15 by load"
    assert "5 requests of codex to /v1/responses went by load: response-items" in codex.evidence
    assert "previous_response_id" in codex.cure
    assert (codex.level, busy.level, tokenize.level) == (Level.WARN, Level.WARN, Level.OK)
    assert "docs/api.md#reasons" in busy.cure


def test_turns_that_miss_are_told_with_cause_and_cure() -> None:
    _, kept, finding = findings(told(turns=40, kept=9, broken=[broken("hash", 30)]))

    assert kept.evidence == "9 of 40 turns that were looked at keep the prompt before"
    assert finding.level is Level.WARN
    assert "31 of 40 turns, of litellm, miss" in finding.evidence
    assert "30 of them from the first block on: a hash or an id" in finding.evidence
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in finding.cure


def test_each_cause_that_a_gateway_tells_has_words_and_a_cure() -> None:
    assert CAUSES is not None
    table = CAUSES.partition("by the first of\n\n")[2]
    causes = [line.split()[0] for line in table.strip().splitlines()]

    assert len(causes) == 7
    for cause in causes:
        *_, finding = findings(told(turns=40, broken=[broken(cause)]))
        assert not finding.evidence.endswith(f": {cause}")
        assert finding.cure


def test_a_date_in_the_first_block_is_told() -> None:
    *_, finding = findings(told(requests=10, dated=4))

    assert finding.level is Level.WARN
    assert "4 of 10 prompts that were looked at have today's date" in finding.evidence


def test_what_breaks_caches_is_told_with_its_cost_and_cure() -> None:
    found = BreakerFound("m", "time", "a time is new", "leave it out", (1, 3), 12, 3_400_000)
    report = GatewayReport("http://g", ask(told()).traffic, breakers=BreakersReport(40, [found]))

    [line] = [each for each in judge_gateway(report) if "tokens a day" in each.evidence]

    assert line.level is Level.WARN
    assert "12 prompts of m" in line.evidence
    assert "blocks 1 to 3" in line.evidence
    assert "3,400,000 tokens a day" in line.evidence
    assert line.cure == "leave it out"


def test_a_gateway_that_does_not_look_for_breakers_is_judged_all_the_same() -> None:
    assert ask(told()).breakers is None
