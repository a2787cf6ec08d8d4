"""The command `inferway explain`: a request's record in words, and a picture of its blocks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import click
import msgspec

from inferway.cli import asked_gateway
from inferway.cli.asked_gateway import ACCESS, gateway_client, url_and_name
from inferway.cli.command import Command, section
from inferway.cli.flag import option
from inferway.cli.fleet_state import CannotAskError, GatewayClient
from inferway.cli.tail import escaped
from inferway_console.cli.block_picture import Marks, legend, row, terminal_marks
from inferway_console.records.ms_in_words import ms_in_words
from inferway_console.records.record import CandidateRecord, RequestRecord

_LONGEST_NAME = 28

# The terms of an expected TTFT in words (docs/scheduling.md).
_TERMS = {
    "fixed": "fixed",
    "own": "own tokens",
    "pairs": "token pairs",
    "waiting": "waiting tokens",
    "queue": "waiting requests",
    "batch": "running requests",
    "late": "lateness",
}


@click.command(cls=Command)
@section(
    "Which request",
    asked_gateway.words("[ID]"),
    option("--last", is_flag=True, help="The request that has ended last."),
    option("--slowest", is_flag=True, help="The one with the longest time to its first token."),
    option("--missed", is_flag=True, help="The last that reused less than it could have."),
    example="inferway explain --missed",
)
@section(
    "Gateway",
    *ACCESS,
    example="inferway explain http://10.0.0.2:8080 --last --admin-key-env KEY",
)
@section(
    "Output",
    option(
        "--text",
        is_flag=True,
        help="Show the text around the first block that was not "
        "reused; the gateway must have been started with --explain-text.",
    ),
    option("--json", "as_json", is_flag=True, help="Print the record as one JSON object."),
    option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only."),
    example="inferway explain --slowest --json",
)
def explain(
    words: tuple[str, ...],
    last: bool,
    slowest: bool,
    missed: bool,
    admin_key_env: str | None,
    ca: str | None,
    text: bool,
    as_json: bool,
    ascii_only: bool,
) -> None:
    """Say why a request went where it went, what it reused, and why not more.

    ID is the request's x-request-id; URL is the gateway (http://127.0.0.1:8080), or its admin port.
    Exactly one of ID, --last, --slowest and --missed is given.
    The exit status is 2 if the gateway cannot be asked, or keeps no such record.
    """
    url, request_id = url_and_name(words, "ID")
    if sum((request_id is not None, last, slowest, missed)) != 1:
        raise click.UsageError("give exactly one of ID, --last, --slowest and --missed")
    try:
        gateway = gateway_client(url, admin_key_env, ca)
        found = request_id or _first(gateway, slowest=slowest, missed=missed)
        path = f"/admin/requests/{quote(found, safe='')}"
        told = gateway.get(f"{path}?text" if text else path)
        record = msgspec.convert(told, RequestRecord)
    except (CannotAskError, msgspec.ValidationError) as e:
        click.echo(f"inferway explain: {e}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
        return
    width = shutil.get_terminal_size().columns
    for line in lines_of(record, terminal_marks(ascii_only=ascii_only), width):
        click.echo(line)
    if text:
        for line in _text_lines(told.get("text")):
            click.echo(line)


def lines_of(record: RequestRecord, marks: Marks, width: int) -> Iterator[str]:
    """Yield the lines of an explanation for people to read."""
    yield from map(escaped, _asked(record))
    yield ""
    yield from map(escaped, _chosen(record))
    yield from _picture(record, marks, width)
    yield ""
    yield from map(escaped, _came(record))


def _asked(record: RequestRecord) -> Iterator[str]:
    tokens = "an unknown number of" if record.prompt_tokens < 0 else f"{record.prompt_tokens:,}"
    yield f"request {record.id}: {record.path}, model {record.model or 'unknown'}"
    blocks = f", {record.prompt_blocks} blocks of {record.block_size}" if record.block_size else ""
    streamed = ", streamed" if record.streamed else ""
    yield f"  {tokens} prompt tokens{blocks}{streamed}"
    if record.waited_ms >= 0.1:
        yield f"  it waited {ms_in_words(record.waited_ms)} for its turn"
    if record.edits:
        yield f"  edited: {', '.join(record.edits)}"


def _chosen(record: RequestRecord) -> Iterator[str]:
    if not record.chosen:
        yield f"It was sent nowhere: {record.outcome or 'refused'}, status {record.status}."
        return
    by = f" by {record.picked_by}" if record.picked_by else ""
    yield (
        f"It went to {record.chosen}{by} ({record.reason}), one of {record.num_candidates}, decided"
        f" in {ms_in_words(record.decided_ms)}."
    )
    if record.attempts > 1:
        yield f"It took {record.attempts} attempts."
    if record.continued:
        times = "once" if record.continued == 1 else f"{record.continued} times"
        yield f"Another engine went on in the middle of its answer, {times}."
    if record.prefill:
        yield f"Its prompt was computed by {record.prefill}."


def _picture(record: RequestRecord, marks: Marks, width: int) -> Iterator[str]:
    if not record.candidates:
        return
    yield ""
    names = max(len(_short(each.endpoint)) for each in record.candidates)
    room = max(10, min(width - names - 16, 100))
    for each in record.candidates:
        sign = ">" if each.endpoint == record.chosen else " "
        picture = row(each.tiers or _run(each), record.prompt_blocks, room, marks)
        name = escaped(_short(each.endpoint))
        yield f"{sign} {name:<{names}} {picture} {each.blocks}/{record.prompt_blocks}"
        yield f"  {'':<{names}} {escaped(_about(each, record))}"
    left = record.num_candidates - len(record.candidates)
    if left > 0:
        yield f"  and {left} more"
    yield legend(marks)


def _run(candidate: CandidateRecord) -> tuple[tuple[int, int], ...]:
    return ((0, candidate.blocks),) if candidate.blocks else ()


def _about(each: CandidateRecord, record: RequestRecord) -> str:
    """Return where its part of the prompt ended, what it would have cost, and why not there."""
    load = f"{each.running} running, {each.waiting} waiting"
    if set(each.terms) == {"score"} or not each.terms:
        score = each.terms.get("score", -each.cost)
        return f"score {score:.4g}; {load}"
    expected = sum(each.terms.values())
    parts = sorted(each.terms.items(), key=lambda item: -item[1])
    most = ", ".join(
        f"{_TERMS.get(name, name)} {ms_in_words(ms)}" for name, ms in parts[:3] if ms >= 0.05
    )
    words = f"expected {ms_in_words(expected)} ({most or 'nothing'}), others"
    words = f"{words} {ms_in_words(each.others_ms)}; {load}"
    chosen = next((c for c in record.candidates if c.endpoint == record.chosen), None)
    if chosen is None or each is chosen:
        return words
    more = each.cost - chosen.cost
    return f"{words}; {ms_in_words(abs(more))} {'dearer' if more >= 0 else 'cheaper'}"


def _came(record: RequestRecord) -> Iterator[str]:
    yield _reuse(record)
    for miss in record.missed:
        detail = f": {miss.detail}" if miss.detail else ""
        blocks = "" if miss.kind == "silent" else f", {miss.blocks} blocks"
        yield f"  {miss.kind}{blocks}{detail}"
    if record.ttft_ms >= 0:
        expected = ""
        if record.expected_ttft_ms >= 0:
            expected = f", expected {ms_in_words(record.expected_ttft_ms)}"
        yield f"First token after {ms_in_words(record.ttft_ms)}{expected}."
    if record.itl_p50_ms >= 0:
        yield (
            f"Between tokens {ms_in_words(record.itl_p50_ms)} (median),"
            f" {ms_in_words(record.itl_max_ms)} at most."
        )
    tokens = f", {record.output_tokens:,} tokens" if record.output_tokens >= 0 else ""
    yield (
        f"Ended after {ms_in_words(record.total_ms)}{tokens}: {record.outcome}, status"
        f" {record.status}."
    )


def _reuse(record: RequestRecord) -> str:
    reachable = f"{record.reachable_blocks} blocks"
    if record.reachable_at:
        reachable += f" at {record.reachable_at}"
    told = f"Reachable {reachable}; chosen {record.chosen_blocks} blocks; delivered"
    delivered, known = record.delivered_tokens, record.reachable_blocks * record.block_size
    if delivered < 0:
        return f"{told} not told."
    if delivered > known:
        return (
            f"{told} {delivered:,} tokens: {delivered - known:,} more than were known to be there."
        )
    return f"{told} {delivered:,} tokens{'' if record.missed else ': all that could be'}."


def _text_lines(told: Mapping[str, Any] | None) -> Iterator[str]:
    yield ""
    if told is None:
        yield "The text of its prompt is not in memory any more."
        return
    yield f"Text around token {told['token']}, the first of block {told['block']}:"
    yield f"  …{_one_line(told['before'])} ⟂ {_one_line(told['behind'])}…"
    nearest = told.get("nearest")
    if nearest is not None:
        yield escaped(f"Beside request {nearest['id']} before it: {nearest['says']}")
        for text in nearest.get("texts", ()):
            yield f"  …{_one_line(nearest['same'][-60:])} ⟂ {_one_line(text)}"


def _one_line(text: str) -> str:
    return escaped(text.replace("\n", "\\n"))


def _first(gateway: GatewayClient, *, slowest: bool, missed: bool) -> str:
    """Return the id of the request that is meant. Raises CannotAskError if there is none."""
    query = "&slowest" if slowest else "&missed" if missed else ""
    found = gateway.get(f"/admin/requests?limit=1{query}").get("requests") or []
    if not found:
        what = "has been timed" if slowest else "has missed anything" if missed else "has ended"
        raise CannotAskError(f"{gateway.url}: no request {what} since the gateway has started")
    return str(found[0]["id"])


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
