"""A fleet as tables in the terminal: 80 columns suffice, and more show more."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from inferway.cli.fleet_state import EngineState, FleetState, ModelState
from inferway.doctor.traffic_rules import TRAFFIC
from inferway.fleet.outage import duration
from inferway.model import Alarm, Reason

_WIDE = 110
_LEAST_NAME = 8
_MOST_NAMES = 40  # characters of engines' names in one cell
_BY_PROMPT = "prompts"  # what the model's requests are routed by
_COLORS = {
    **dict.fromkeys(("up", "exact", _BY_PROMPT), "green"),
    **dict.fromkeys(("draining", "drained", "half-open", "partial", "repairing"), "yellow"),
    **dict.fromkeys(("down", "ejected", "stale", "blind"), "red"),
    **dict.fromkeys(("unreachable", "silent", "stalled", "invalid"), "red"),
}
_LEVELS = {"fail": "red", "warn": "yellow", "info": "cyan"}
_MOST_DOWN = 8  # that have a line each


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of change between two moments, per second, by name. An unknown rate is absent."""

    requests: float
    prompt_tokens: dict[str, float]  # engine ->
    model_requests: dict[str, float]  # model ->


def rates(before: FleetState, now: FleetState, seconds: float) -> Rates:
    """Counters of a gateway that was started anew begin at 0: then nothing is known."""
    tokens = {each.name: each.prompt_tokens for each in before.engines}
    asked = {each.name: each.requests for each in before.models}
    return Rates(
        requests=max(0, now.requests - before.requests) / seconds,
        prompt_tokens={
            each.name: (each.prompt_tokens - tokens[each.name]) / seconds
            for each in now.engines
            if each.prompt_tokens >= tokens.get(each.name, each.prompt_tokens + 1)
        },
        model_requests={
            each.name: (each.requests - (asked.get(each.name) or 0)) / seconds
            for each in now.models
            if each.requests is not None and each.requests >= (asked.get(each.name) or 0)
        },
    )


def fleet_table(state: FleetState, width: int, rate: Rates | None = None) -> RenderableType:
    """Return the table of the whole fleet. With `rate`, it has columns of rates per second."""
    parts: list[RenderableType] = [_heading(state, rate)]
    if not state.ready:
        parts.append(Text(f"not ready: {state.why or 'the gateway does not say why'}", "bold red"))
    parts.append(_engines(_listed(state.engines), width, rate))
    left = len(state.engines) - len(_listed(state.engines))
    if left:
        parts.append(Text(f"and {left} engines that are down", "red"))
    if any(engine.kv_transfer for engine in state.engines):
        parts.append(_transfers(state.engines, width))
    if state.models:
        parts.append(_models(state.models, width, rate))
    parts += [_alarm(alarm) for alarm in state.alarms if alarm.subject != TRAFFIC]
    return Group(*parts)


def _listed(engines: list[EngineState]) -> list[EngineState]:
    """Return the engines that have a line: all, unless many are down."""
    down = sum(engine.state == "down" for engine in engines)
    return [each for each in engines if down <= _MOST_DOWN or each.state != "down"]


def _alarm(alarm: Alarm) -> Text:
    now = datetime.now().astimezone()
    words = alarm.said(lambda since: local_since(since, now))
    text = Text(f"{alarm.subject}: {words}", _LEVELS.get(alarm.level, ""))
    if alarm.cure:
        text.append(f"\n  fix: {alarm.cure}", "dim")
    if alarm.see:
        text.append(f"\n  {alarm.see}", "dim")
    return text


def local_since(since: float, now: datetime) -> str:
    """Return since when, by the clock on the reader's wall, and for how long. `since`: Unix
    time."""
    at = datetime.fromtimestamp(since, now.tzinfo)
    day = "" if at.date() == now.date() else f"{at:%Y-%m-%d} "
    return f"since {day}{at:%H:%M:%S} ({duration(now.timestamp() - since)})"


def _heading(state: FleetState, rate: Rates | None) -> Text:
    up = sum(engine.state == "up" for engine in state.engines)
    words = f"{state.url}  {up} of {len(state.engines)} engines up  {state.requests:,} requests"
    if rate is not None:
        words += f"  {rate.requests:,.1f}/s"
    return Text.assemble(
        ("ready" if state.ready else "NOT READY", "bold green" if state.ready else "bold red"),
        "  ",
        words,
    )


def _engines(engines: list[EngineState], width: int, rate: Rates | None) -> Table:
    heads = [
        "engine",
        "state",
        "since",
        "cache",
        "run",
        "wait",
        "KV",
        "blocks",
        "match",
        "deliv",
        "event",
    ]
    heads += ["tok/s"] if rate is not None else []
    heads += ["in flight", "prompt tokens", "url"] if width >= _WIDE else []
    rows = []
    for engine in engines:
        row = [
            *(engine.name, _state(engine, width), _age(engine.since_seconds)),
            *(engine.cache, str(engine.running), str(engine.waiting)),
            *(f"{engine.kv_usage:.0%}", f"{engine.blocks:,}", _share(engine.matched_share)),
            *(_share(engine.delivered_share), _age(engine.event_age_seconds)),
        ]
        if rate is not None:
            row.append(_rate(rate.prompt_tokens.get(engine.name)))
        if width >= _WIDE:
            row += [str(engine.in_flight), f"{engine.prompt_tokens:,}", engine.url]
        rows.append(row)
    return _table(heads, rows, width, texts={"engine", "state", "cache", "url"})


def _transfers(engines: list[EngineState], width: int) -> Table:
    """Return the table of engines that compute prompts for others."""
    heads = ["engine", "role", "connector", "lease", "hands blocks to"]
    rows = []
    for engine in engines:
        hands = engine.kv_transfer
        if hands is not None:
            others = ", ".join(hands.hands_to) or "nobody"
            others = others if len(others) <= _MOST_NAMES else f"{len(hands.hands_to)} engines"
            lease = f"{hands.lease_seconds:g}s"
            rows.append([engine.name, hands.role, hands.connector, lease, others])
    return _table(heads, rows, width, texts={"engine", "role", "connector", "hands blocks to"})


def _models(models: list[ModelState], width: int, rate: Rates | None) -> Table:
    heads = ["model", "routed by", "requests", "TTFT p50", "TTFT p95"]
    heads += ["req/s"] if rate is not None else []
    rows = []
    for model in models:
        asked = "-" if model.requests is None else f"{model.requests:,}"
        how = _BY_PROMPT if model.routed_by == Reason.KV_AWARE else model.routed_by
        row = [model.name, how, asked]
        row += [_milliseconds(model.ttft_p50), _milliseconds(model.ttft_p95)]
        if rate is not None:
            row.append(_rate(rate.model_requests.get(model.name)))
        rows.append(row)
    return _table(heads, rows, width, texts={"model", "routed by"})


def _table(heads: list[str], rows: list[list[str]], width: int, texts: set[str]) -> Table:
    """The first column alone gives way where there is no room; the url goes. No number is cut."""
    needs = [max(map(cell_len, cells)) for cells in zip(heads, *rows, strict=True)]
    if heads[-1] == "url" and sum(needs) + len(needs) > width:
        heads, rows, needs = heads[:-1], [row[:-1] for row in rows], needs[:-1]
    room = width - sum(needs[1:]) - len(needs)
    needs[0] = min(needs[0], max(room, _LEAST_NAME))
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for head, need in zip(heads, needs, strict=True):
        justify: JustifyMethod = "left" if head in texts else "right"
        table.add_column(head, width=need, no_wrap=True, overflow="ellipsis", justify=justify)
    for row in rows:
        table.add_row(*[Text(cell, _COLORS.get(cell, "")) for cell in row])
    return table


def _state(engine: EngineState, width: int) -> str:
    return (engine.outage or engine.state) if width >= _WIDE else engine.state


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"
