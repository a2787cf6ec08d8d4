"""Findings about a gateway's traffic: requests that are routed by load, and changes that break the
caches of conversations, agents' above all. The gateway looks at a sample, and keeps no text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferway.doctor.facts import (
    BreakersReport,
    BrokenTurns,
    ConversationsReport,
    GatewayReport,
    RequestsByLoad,
    TrafficReport,
)
from inferway.doctor.rules import CheckResult, Level
from inferway.fleet.outage import since_words
from inferway.model import Alarm
from inferway.openai_api.kinds import GENERATING
from inferway.telemetry.traffic_counts import TrafficCounts

TRAFFIC = "traffic"  # the subject of alarms that are judged here
_LEVELS = {"fail": Level.FAIL, "warn": Level.WARN, "info": Level.OK}
_MOST_BREAKERS = 10
_MOST_LINES = 8  # of one kind: what comes most often is first

_REASONS = "docs/api.md#reasons says what it means"
_BY_LOAD_CURES = {
    "response-items": "have the client send the whole conversation, without previous_response_id,"
    " encrypted reasoning and files",
    "message-blocks": "have the client leave out what engines refuse: docs/api.md#messages",
    "request-template": "let the engines have the template (--chat-template), not the requests; or"
    " trust them (trust_request_templates)",
    "no-template": "give the gateway the model's --chat-template",
    "no-tokenizer": "give the gateway the model's --tokenizer",
    "unfaithful": "the gateway's log names the engine's flag that the gateway lacks",
    "no-block-size": "have the engines publish KV events, or give block_size",
    "load-only": "switch scoring on",
}

_CAUSES = {
    "tools-order": (
        "the same tools come in another order",
        "have the client, or the proxy before it, sort its tools by name",
    ),
    "tools": (
        "tools are added or removed between turns",
        "have the client give all tools from the first turn on",
    ),
    "hash": (
        "a hash or an id in the system prompt is new each time, as Claude Code's `cch=` is where a"
        " proxy translates its messages into chats",
        "set CLAUDE_CODE_ATTRIBUTION_HEADER=0 for Claude Code, or let it ask the gateway's"
        " /v1/messages itself; others: put ids at the end of the prompt",
    ),
    "time": (
        "a date or a time in the system prompt is new each time",
        "have the client put it at the end of the prompt, or leave it as it was at the first turn",
    ),
    "system": (
        "the system prompt is another one",
        "have the client put what changes at the end of the prompt",
    ),
    "inline-system": (
        "system messages inside the conversation change what comes before them",
        "start the engines with a --chat-template that keeps system messages in their places, and"
        " give the gateway the same",
    ),
    "history": (
        "earlier messages have changed: the client shortens or rewrites them",
        "have the client leave them until it must compact the conversation",
    ),
}


def traffic_alarms(traffic: TrafficCounts) -> Iterator[Alarm]:
    """Yield what is not well in the traffic."""
    told = msgspec.convert(traffic.told(), TrafficReport)
    for found in judge_gateway(GatewayReport("", told)):
        if found.level is not Level.OK:
            yield Alarm(found.level, TRAFFIC, found.evidence, found.cure)


def judge_alarms(found: GatewayReport, now: float) -> Iterator[CheckResult]:
    """Yield the gateway's alarms, or that it has none. `now`: Unix time."""
    if found.alarms is None:
        return
    alarms = [alarm for alarm in found.alarms if alarm.subject != TRAFFIC]
    for alarm in alarms:
        evidence = alarm.said(lambda since: since_words(since, now))
        cure = "; ".join(filter(None, [alarm.cure, alarm.see and f"see {alarm.see}"]))
        level = _LEVELS.get(alarm.level, Level.WARN)
        yield CheckResult(level, f"{found.url}: {alarm.subject}", evidence, cure)
    if not alarms:
        evidence = "its page has no alarm: all engines answer, and none is slow"
        yield CheckResult(Level.OK, f"gateway {found.url}", evidence)


def judge_gateway(found: GatewayReport) -> Iterator[CheckResult]:
    subject = f"gateway {found.url}"
    if found.traffic is None:
        cure = "start it, or give the URL of one that runs: --gateway http://HOST:PORT"
        yield CheckResult(Level.FAIL, subject, found.error or "it says nothing", cure)
        return
    traffic = found.traffic
    by_load = sum(each.requests for each in traffic.by_load)
    evidence = f"{traffic.by_prompt} requests went by their prompts, {by_load} by load"
    yield CheckResult(Level.OK, subject, evidence)
    if not found.events.followed:
        evidence = f"the engines' KV events are not followed: {found.events.why}"
        yield CheckResult(Level.OK, subject, evidence)
    for each in traffic.by_load[:_MOST_LINES]:
        yield _by_load(subject, each)
    yield from _conversations(subject, traffic.conversations)
    if found.breakers is not None:
        yield from judge_breakers(subject, found.breakers)


def _by_load(subject: str, found: RequestsByLoad) -> CheckResult:
    evidence = (
        f"{found.requests} requests of {found.client} to {found.path} went by load: {found.reason}"
    )
    if found.path not in GENERATING:
        return CheckResult(Level.OK, subject, evidence)
    cure = _BY_LOAD_CURES.get(found.reason, _REASONS)
    return CheckResult(Level.WARN, subject, evidence, cure)


def _conversations(subject: str, found: ConversationsReport) -> Iterator[CheckResult]:
    if found.turns:
        evidence = f"{found.kept} of {found.turns} turns that were looked at keep the prompt before"
        yield CheckResult(Level.OK, subject, evidence)
    for each in found.broken[:_MOST_LINES]:
        yield _broken(subject, each, found.turns)
    if found.dated:
        evidence = (
            f"{found.dated} of {found.requests} prompts that were looked at have today's date in"
            " their first block: nothing of them is found again tomorrow"
        )
        cure = "have the client put the date behind what stays, at the end of the system prompt"
        yield CheckResult(Level.WARN, subject, evidence, cure)


def judge_breakers(subject: str, found: BreakersReport) -> Iterator[CheckResult]:
    """Yield a result for each cache breaker, or one that says that there is none."""
    if not found.breakers and found.looked_at:
        evidence = f"of {found.looked_at} prompts that were compared, none is nearly as another one"
        yield CheckResult(Level.OK, subject, evidence)
    for each in found.breakers[:_MOST_BREAKERS]:
        first, last = each.blocks
        where = f"block {first}" if first == last else f"blocks {first} to {last}"
        evidence = (
            f"{each.requests} prompts of {each.model} that were compared part from others in"
            f" {where}, because {each.what}: about {each.tokens_a_day:,} tokens a day are computed"
            f" again, {each.share:.1%} of its prompt tokens"
        )
        yield CheckResult(Level.WARN, subject, evidence, each.cure)


def _broken(subject: str, found: BrokenTurns, turns: int) -> CheckResult:
    what, cure = _CAUSES.get(found.cause, (found.cause, ""))
    where = f", {found.in_first_block} of them from the first block on"
    evidence = (
        f"{found.turns} of {turns} turns, of {found.client}, miss what the turn before has cached"
        f"{where if found.in_first_block else ''}: {what}"
    )
    return CheckResult(Level.WARN, subject, evidence, cure)
