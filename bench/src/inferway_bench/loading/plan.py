"""The flags of `inferway bench load`, and the forms of their values. Pure."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec

from inferway.cli.command import Section
from inferway_bench.flags import flag
from inferway_bench.loading.datasets import dataset_file

Range = tuple[int, int]  # least and most

_EXAMPLE = "inferway bench load http://127.0.0.1:8080"
_WHEN = Section("How much, and when", f"{_EXAMPLE} --rates 3..20 --duration 60")
_WHAT = Section("What is sent", "{command} --turns 3-8 --systems 4")
SERVER = Section("Server", "{command} --timeout 60")
_GOALS = Section("Goals", f"{_EXAMPLE} --users 8 --slo-ttft 0.5 --save run.json")

# Between a rate and ten times as much; seed 000's own ladder is 3..20.
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


def request_rates(text: str) -> tuple[float, ...]:
    """Return the rates of `3,4,5.5`, or of `3..20`: the two, and the round numbers between them."""
    number = r"\d+(?:\.\d+)?"
    ladder = re.fullmatch(rf"({number})\.\.({number})", text)
    if ladder is not None:
        low, high = float(ladder[1]), float(ladder[2])
        if 0 < low <= high:
            return _ladder(low, high)
    elif re.fullmatch(rf"{number}(,{number})*", text):
        rates = tuple(float(part) for part in text.split(","))
        if min(rates) > 0:
            return rates
    raise click.BadParameter(
        f"{text!r}: expected requests per second like 3,4,5.5 or 3..20, all above 0"
    )


def _ladder(low: float, high: float) -> tuple[float, ...]:
    decade = 10.0 ** math.floor(math.log10(low))
    rates = [low]
    while decade <= high:
        rates += [r for s in _STEPS if low < (r := float(f"{s * decade:.6g}")) < high]
        decade *= 10
    return (*rates, high) if high > low else (low,)


def user_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of `8`, or of `1,8,64`."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise click.BadParameter(f"{text!r}: expected numbers of users like 8 or 1,8,64")
    return tuple(int(part) for part in text.split(","))


def least_most(text: str) -> Range:
    """Return the numbers of `600-800`, or one number as both."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise click.BadParameter(f"{text!r}: expected a number from 1 on, or two like 600-800")
    return low, high


class Header:
    """A request header, whose value may be secret: neither an error nor a stored plan says it."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value

    def __repr__(self) -> str:
        return f"{self.name}: …"


def header(text: str) -> Header:
    """Return the header of `Name: value`."""
    form = r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)"
    match = re.fullmatch(form, text)
    if match is None:
        raise click.BadParameter("expected 'Name: value', in one line of printable ASCII")
    return Header(match[1], match[2])


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of the sessions to send, and how; times in seconds."""

    # fmt: off
    dataset: Annotated[Path | None, flag(
        "Send the conversations, OpenAI bodies or trace in this file, instead of generated chats."
        " The names mooncake, agentic and azure take the traces that are installed with"
        " Inferway, and names such as mt_bench_101 its chats.",
        parse=dataset_file, metavar="FILE|NAME", section=_WHAT,
    )] = None
    max_prompt_tokens: Annotated[int | None, flag(
        "Leave out what a trace has of longer prompts.", ge=1, section=_WHAT,
    )] = None
    systems: Annotated[int, flag(
        "Let generated chats share this number of system prompts.", ge=0, section=_WHAT,
    )] = 4
    system_tokens: Annotated[int, flag(
        "Give each system prompt this number of tokens.", ge=1, section=_WHAT,
    )] = 500
    turns: Annotated[Range, flag(
        "Give each generated chat this number of turns.  [default: 3-8]",
        parse=least_most, metavar="LEAST-MOST", section=_WHAT,
    )] = (3, 8)
    message_tokens: Annotated[Range, flag(
        "Give each generated message this number of tokens.  [default: 50-200]",
        parse=least_most, metavar="LEAST-MOST", section=_WHAT,
    )] = (50, 200)
    think: Annotated[float, flag(
        "Wait this time, on average, between an answer and the next turn of a generated chat, "
        "with --users.", ge=0, metavar="SECONDS", section=_WHAT,
    )] = 0.0
    output_tokens: Annotated[Range | None, flag(
        "Ask for this number of tokens in each answer.  [default: 50-150; of a dataset its own]",
        parse=least_most, metavar="LEAST-MOST", section=_WHAT,
    )] = None
    answers: Annotated[Literal["server", "given"] | None, flag(
        "Keep the server's answers in the history of a chat, or those that were given with it.  "
        "[default: server; with a dataset given]", section=_WHAT,
    )] = None
    ignore_eos: Annotated[bool, flag(
        "Let answers end where the model ends them, for servers that refuse ignore_eos.",
        section=_WHAT,
    )] = True
    sessions: Annotated[int, flag(
        "Keep this number of conversations open at a time, in an open loop.", ge=1, section=_WHAT,
    )] = 40
    seed: Annotated[int, flag("Draw lengths, times and order with this seed.", section=_WHAT)] = 0
    model: Annotated[str | None, flag(
        "Ask for this model.  [default: the first of /v1/models]", metavar="NAME", section=SERVER,
    )] = None
    headers: Annotated[tuple[Header, ...], flag(
        "Send this header with each request. Repeat the flag for more.",
        name="--header", parse=header, metavar="'NAME: VALUE'", is_repeated=True,
        section=SERVER,
    )] = ()
    timeout: Annotated[float, flag(
        "Wait for a whole answer for at most this time.", gt=0, metavar="SECONDS", section=SERVER,
    )] = 300.0
    # fmt: on


class LoadPlan(Sent, frozen=True, kw_only=True):
    """A plan of the requests to send, to whom, and when; times in seconds. Raises ValueError for
    fields that do not go together."""

    # fmt: off
    url: Annotated[str, flag("", is_argument=True)]
    rates: Annotated[tuple[float, ...], flag(
        "Send requests at these rates a second, one rate after the other, as in 3,4,5.5 or 3..20,"
        " whether answers have come or not (an open loop).",
        parse=request_rates, metavar="RATES", section=_WHEN,
    )] = ()
    users: Annotated[tuple[int, ...], flag(
        "Let this number of users each send a request when the one before is answered, as in 8 or"
        " 1,8,64 (a closed loop).", parse=user_counts, metavar="USERS", section=_WHEN,
    )] = ()
    trace_times: Annotated[bool, flag(
        "Send requests at the trace's own times (an open loop).", section=_WHEN,
    )] = False
    speed: Annotated[float, flag(
        "Run through the trace's own times this many times as fast.", gt=0, section=_WHEN,
    )] = 1.0
    duration: Annotated[float | None, flag(
        "Measure each load for this time.  [default: 60]", gt=0, metavar="SECONDS", section=_WHEN,
    )] = None
    requests: Annotated[int | None, flag(
        "Measure each load for this number of requests, instead of --duration.",
        ge=1, section=_WHEN,
    )] = None
    warm_up: Annotated[float | None, flag(
        "Leave out what happens in this time before the measurement.  [default: 5; with "
        "--requests 0]", ge=0, metavar="SECONDS", section=_WHEN,
    )] = None
    stream: Annotated[bool, flag("Ask for whole answers instead of streams.", section=_WHAT)] = True
    same_text: Annotated[bool, flag(
        "Generate the same words in each run with the same seed, so that caches may know them. "
        "Otherwise text is new each time, and lengths and times are the same.", section=_WHAT,
    )] = False
    api_key_env: Annotated[str | None, flag(
        "Send the API key that this environment variable holds.", metavar="NAME", section=SERVER,
    )] = None
    slo_ttft: Annotated[float | None, flag(
        "Count the answers whose first token comes in this time.",
        gt=0, metavar="SECONDS", section=_GOALS,
    )] = None
    slo_itl: Annotated[float | None, flag(
        "Count the answers with at most this mean time between tokens.",
        gt=0, metavar="SECONDS", section=_GOALS,
    )] = None
    slo_e2e: Annotated[float | None, flag(
        "Count the answers that are whole in this time.", gt=0, metavar="SECONDS", section=_GOALS,
    )] = None
    # fmt: on

    def __post_init__(self) -> None:
        asked = [
            f"--{name.replace('_', '-')}"
            for name in ("rates", "users", "trace_times")
            if getattr(self, name)
        ]
        if len(asked) != 1:
            found = " and ".join(asked) or "none of them"
            raise ValueError(f"expected one of --rates, --users and --trace-times, not {found}")
        if self.requests is not None and self.duration is not None:
            raise ValueError("--requests and --duration: only one of them can end a load")
        if self.trace_times and self.dataset is None:
            raise ValueError("--trace-times: of which trace? Fix: --dataset mooncake, or a file")

    @property
    def before(self) -> float:
        """The seconds of each load that are left out at its beginning."""
        usual = 5.0 if self.requests is None else 0.0
        return usual if self.warm_up is None else self.warm_up

    @property
    def after(self) -> float:
        """The seconds of each load that are left out at its end."""
        return 2.0 if self.requests is None else 0.0

    @property
    def seconds(self) -> float | None:
        """The seconds that a load takes in all; None if it ends with its requests."""
        if self.requests is not None:
            return None
        return self.before + (self.duration or 60.0) + self.after
