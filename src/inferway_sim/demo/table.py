"""The demo's tables, as lines of at most 80 characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from inferway_sim.demo.measure import MeasuredAnswer

_PROMPT = 22  # characters of a prompt
_BAR = 10
_HELD = 18  # characters of the bar and the count beside it
# Ways to send a prompt -> the characters of their column, and how it looks.
_WAYS: Final = {
    "Inferway": (8, "bold green"),
    "round-robin": (11, "yellow"),
    "no cache": (8, "dim"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt of the table, sent three times."""

    prompt: str
    ours: MeasuredAnswer
    by_turns: MeasuredAnswer  # round-robin, on engines of its own
    cold: MeasuredAnswer  # on an engine that holds nothing of it

    @property
    def answers(self) -> tuple[MeasuredAnswer, MeasuredAnswer, MeasuredAnswer]:
        """The three answers in the order of the columns."""
        return self.ours, self.by_turns, self.cold


def heads() -> list[Text]:
    """Return the lines above the rows."""
    left = f" {'prompt':<{_PROMPT}} engine {'blocks it held':<{_HELD}}"
    names = "".join(f" {name:>{width}}" for name, (width, _) in _WAYS.items())
    above = f"{'milliseconds to the first token':>{len(left + names)}}"
    return [Text(above, style="dim"), Text(left + names, style="dim")]


def line_of(row: Row) -> Text:
    """Return the line of one prompt."""
    line = Text(f" {shortened(row.prompt, _PROMPT):<{_PROMPT}} ")
    line.append(f"{row.ours.engine:<6} ", style="bold")
    line.append(bar(row.ours.matched_blocks, row.ours.prompt_blocks))
    held = f"{row.ours.matched_blocks}/{row.ours.prompt_blocks}"
    line.append(f" {held:<{_HELD - _BAR - 1}}")
    return _with_numbers(line, [f"{answer.first_token_ms:.0f}" for answer in row.answers])


def totals(rows: Sequence[Row]) -> list[Text]:
    """Return the lines below the table, with the sums of all rows."""
    ways = list(zip(*(row.answers for row in rows), strict=True))
    times = [f"{sum(answer.first_token_ms for answer in way):.0f}" for way in ways]
    shares = [
        f"{sum(a.cached_tokens for a in way) / sum(a.prompt_tokens for a in way):.0%}"
        for way in ways
    ]
    left = _PROMPT + _HELD + 8
    return [
        Text(f" {'─' * 78}", style="dim"),
        _with_numbers(Text(f" {f'all {len(rows)} prompts':<{left}}"), times),
        _with_numbers(Text(f" {'tokens that were in the cache':<{left}}"), shares),
    ]


def _with_numbers(line: Text, numbers: Sequence[str]) -> Text:
    for number, (width, style) in zip(numbers, _WAYS.values(), strict=True):
        line.append(f" {number:>{width}}", style=style)
    return line


def bar(part: int, whole: int) -> Text:
    """Return a bar that is filled to the share `part / whole`."""
    filled = round(_BAR * part / whole) if whole else 0
    made = Text("█" * filled, style="green")
    return made.append("░" * (_BAR - filled), style="dim")


def live_heads() -> Text:
    """Return the line above those of requests that come while the demo serves."""
    return Text(f" time     {'model':<28}engine {'blocks it held':<19}first token", style="dim")


def live_line(
    clock: str, model: str, engine: str, held: tuple[int, int], milliseconds: float, outcome: str
) -> Text:
    """Return the line of a request that came while the demo serves; nothing of its prompt."""
    line = Text(f" {clock} {shortened(printable(model), 27):<27} ")
    if not engine:
        return line.append(outcome, style="yellow")
    line.append(f"{printable(engine):<6} ", style="bold")
    line.append(bar(*held))
    blocks = f"{held[0]}/{held[1]}"
    line.append(f" {blocks:<7} ")
    return line.append(f"{milliseconds:.0f} ms" + ("" if outcome == "ok" else f" {outcome}"))


def printable(text: str) -> str:
    """Return `text` without control characters, so that a client's text cannot steer the
    terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def shortened(text: str, most: int) -> str:
    """Cut off with an ellipsis where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
