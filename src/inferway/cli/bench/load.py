"""`inferway bench load`."""

from __future__ import annotations

import os
import re
import secrets
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from inferway.bench import plotting
from inferway.bench.compare import compare
from inferway.bench.loading.client import Target
from inferway.bench.loading.generated import ChatSpec
from inferway.bench.loading.report import LOAD, pictures
from inferway.bench.loading.results import LoadRun, Slo
from inferway.bench.loading.run import Load, OnProgress, Plan, run_load
from inferway.bench.loading.samples import Sample
from inferway.bench.loading.sources import Source, generated, of_file
from inferway.bench.results import load_run, write_run
from inferway.cli.bench.output import TOLERANCE, show, show_comparison
from inferway.errors import InferwayError

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Between a rate and ten times as much; seed 000's own ladder is 3..20.
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
_REFRESH_SECONDS = 1.0  # of the progress bar, whose drawing takes a millisecond
_INTERRUPTED = 130


def request_rates(text: str) -> tuple[float, ...]:
    """`3,4,5.5`, or `3..20`: the two, and the round numbers between them."""
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
    decade = 10.0 ** np.floor(np.log10(low))
    rates = [low]
    while decade <= high:
        rates += [r for s in _STEPS if low < (r := float(f"{s * decade:.6g}")) < high]
        decade *= 10
    return (*rates, high) if high > low else (low,)


def user_counts(text: str) -> tuple[int, ...]:
    """`8`, or `1,8,64`."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise click.BadParameter(f"{text!r}: expected numbers of users like 8 or 1,8,64")
    return tuple(int(part) for part in text.split(","))


def least_most(text: str) -> tuple[int, int]:
    """`600-800`, or one number."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise click.BadParameter(f"{text!r}: expected a number from 1 on, or two like 600-800")
    return low, high


def header(text: str) -> tuple[str, str]:
    """`Name: value`. The value may be secret: no error says it."""
    match = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)", text)
    if match is None:
        raise click.BadParameter("expected 'Name: value', in one line of printable ASCII")
    return match[1], match[2]


def _where(command: _Command) -> _Command:
    """The options that say whom to ask."""
    options = [
        click.option("--model", metavar="NAME", help="[default: the first of /v1/models]"),
        click.option("--api-key-env", metavar="NAME", help="The variable that has the API key."),
        click.option(
            "--header", "headers", type=header, multiple=True, metavar="'NAME: VALUE'",
            help="Sent with each request; repeat for more.",
        ),
        click.option(
            "--ca-file", type=click.Path(exists=True, dir_okay=False), metavar="PEM",
            help="Who may vouch for the server.  [default: the system's authorities]",
        ),
        click.option("--insecure", is_flag=True, help="Do not ask who the server is (TLS)."),
        click.option(
            "--timeout", type=click.FloatRange(min=0, min_open=True), default=300.0,
            show_default=True, metavar="SECONDS", help="For a whole answer.",
        ),
    ]  # fmt: skip
    return _with(options, command)


def _when(command: _Command) -> _Command:
    """The options that say how much, and when."""
    seconds = click.FloatRange(min=0)
    options = [
        click.option(
            "--rates", type=request_rates, metavar="RATES",
            help="Open loop: requests per second, one rate after the other: 3,4,5.5 or 3..20.",
        ),
        click.option(
            "--users", type=user_counts, metavar="USERS",
            help="Closed loop: so many at a time, each sends when it has its answer: 8 or 1,8,64.",
        ),
        click.option("--trace-times", is_flag=True, help="Open loop: the trace's own times."),
        click.option(
            "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0,
            show_default=True, help="Of the trace's own times.",
        ),
        click.option("--uniform", is_flag=True, help="Arrivals evenly spaced, not Poisson."),
        click.option(
            "--sessions", "live", type=click.IntRange(min=1), default=40, show_default=True,
            help="Open at a time, in an open loop whose requests all have their times.",
        ),
        click.option(
            "--duration", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
            help="Measured, of each load.  [default: 60]",
        ),
        click.option(
            "--requests", type=click.IntRange(min=1), help="Of each load, instead of --duration."
        ),
        click.option(
            "--warm-up", type=seconds, metavar="SECONDS",
            help="Before it, left out.  [default: 5; with --requests 0]",
        ),
        click.option(
            "--cool-down", type=seconds, metavar="SECONDS",
            help="Behind it, left out.  [default: 2; with --requests 0]",
        ),
    ]  # fmt: skip
    return _with(options, command)


def _what(command: _Command) -> _Command:
    """The options that say what is sent."""
    default = ChatSpec()
    options = [
        click.option(
            "--dataset", type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE", help="Conversations, OpenAI bodies or a trace, instead of generated "
            "chats.",
        ),
        click.option(
            "--max-prompt-tokens", type=click.IntRange(min=1),
            help="Leave out what a trace has of longer prompts.",
        ),
        click.option(
            "--systems", type=click.IntRange(min=0), default=default.systems, show_default=True,
            help="System prompts that generated chats share.",
        ),
        click.option(
            "--system-tokens", type=click.IntRange(min=1), default=default.system_tokens,
            show_default=True, help="Of each of them.",
        ),
        click.option(
            "--turns", type=least_most, metavar="LEAST-MOST",
            help="Of a generated chat.  [default: 3-8]",
        ),
        click.option(
            "--message-tokens", type=least_most, metavar="LEAST-MOST",
            help="Of a generated user's message.  [default: 50-200]",
        ),
        click.option(
            "--output-tokens", type=least_most, metavar="LEAST-MOST",
            help="Of an answer.  [default: 50-150; of a dataset its own]",
        ),
        click.option(
            "--think", type=click.FloatRange(min=0), default=0.0, show_default=True,
            metavar="SECONDS", help="Between an answer and the next turn of a generated chat: "
            "the mean of an exponential. For --users.",
        ),
        click.option(
            "--answers", type=click.Choice(["server", "given"]),
            help="What the history keeps: the server's answers, or the dataset's (generated "
            "ones).  [default: server; with a dataset given]",
        ),
        click.option(
            "--no-ignore-eos", is_flag=True,
            help="Answers end where the model ends them; for servers that refuse ignore_eos.",
        ),
        click.option("--no-stream", is_flag=True, help="Ask for whole answers."),
        click.option(
            "--same-text", is_flag=True,
            help="The same words in each run with the same seed: caches may know them. Else "
            "generated text is new each time, and all lengths and times are the same.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn."),
    ]  # fmt: skip
    return _with(options, command)


def _then(command: _Command) -> _Command:
    """The options that say what is done with what was found."""
    limit = click.FloatRange(min=0, min_open=True)
    file = click.Path(dir_okay=False, path_type=Path)
    options = [
        click.option("--slo-ttft", type=limit, metavar="SECONDS", help="Goal: to the first token."),
        click.option("--slo-itl", type=limit, metavar="SECONDS", help="Goal: between tokens."),
        click.option("--slo-e2e", type=limit, metavar="SECONDS", help="Goal: the whole answer."),
        click.option("--json", "as_json", is_flag=True, help="JSON lines on standard output."),
        click.option("--save", type=file, metavar="FILE", help="Write the same lines to FILE."),
        click.option(
            "--plot", type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR", help="Draw DIR/load.png and .svg.",
        ),
        click.option(
            "--compare", "old", type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="OLD.json", help="Compare with what --save wrote; status 1 if it is worse.",
        ),
        click.option(
            "--tolerance", type=click.FloatRange(min=0), default=TOLERANCE, show_default=True,
            help="By what share something may be worse.",
        ),
    ]  # fmt: skip
    return _with(options, command)


def _with(options: Sequence[Callable[[_Command], _Command]], command: _Command) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("url")
@_when
@_what
@_where
@_then
def load(url: str, **given: Any) -> None:
    """Load an OpenAI endpoint and measure it: URL, as in http://127.0.0.1:8000.

    Sessions grow turn by turn. Latency counts from the time at which a request was meant to be
    sent, so that a server that stalls is charged with all that it delays.
    """
    try:
        if given["plot"] is not None:
            plotting.check_can_draw()
        old = None if given["old"] is None else load_run(given["old"], LoadRun)
        target, source, plan = _target(url, given), _source(given), _plan(given)
        with _progress(plan) as on_progress:
            run = run_load(target, source, plan, model=given["model"], on_progress=on_progress)
        if given["save"] is not None:
            given["save"].write_bytes(write_run("load", run))
        if given["plot"] is not None:
            for picture in pictures(run):
                plotting.write(picture, given["plot"])
    except InferwayError as e:
        raise click.ClickException(str(e)) from e
    if given["as_json"]:
        click.echo(write_run("load", run), nl=False)
    else:
        show(LOAD, run)
    if old is not None:
        show_comparison(compare(old, run), given["tolerance"])
    if not all(m.is_whole for m in run.measured) or len(run.measured) < len(plan.loads):
        sys.exit(_INTERRUPTED)


def _target(url: str, given: dict[str, Any]) -> Target:
    headers = dict(given["headers"])
    if given["api_key_env"] is not None:
        key = os.environ.get(given["api_key_env"], "").strip()
        if not key.isascii() or not key.isprintable() or not key:
            raise click.UsageError(
                f"--api-key-env {given['api_key_env']}: the variable is unset, empty or not "
                "printable ASCII; the cure: export it"
            )
        headers["authorization"] = f"Bearer {key}"
    return Target(url, headers, given["timeout"], _tls(given))


def _tls(given: dict[str, Any]) -> ssl.SSLContext | None:
    if given["ca_file"] is None and not given["insecure"]:
        return None
    try:
        context = ssl.create_default_context(cafile=given["ca_file"])
    except (OSError, ssl.SSLError) as e:
        raise click.UsageError(f"--ca-file {given['ca_file']}: no certificates: {e}") from e
    if given["insecure"]:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _source(given: dict[str, Any]) -> Source:
    force, answers = not given["no_ignore_eos"], given["answers"]
    tag = "" if given["same_text"] else secrets.token_hex(8)
    if given["dataset"] is not None:
        source = of_file(
            given["dataset"],
            given["seed"],
            output_tokens=given["output_tokens"],
            given_answers=answers != "server",
            force_length=force,
            most_tokens=given["max_prompt_tokens"],
            tag=tag,
        )
        if given["trace_times"] and source.timed is None:
            raise click.UsageError(
                f"--trace-times: {given['dataset']} is not a trace; the cure: --rates or --users"
            )
        return source
    if given["trace_times"]:
        raise click.UsageError("--trace-times: of which trace? The cure: --dataset FILE")
    default = ChatSpec()
    spec = ChatSpec(
        systems=given["systems"],
        system_tokens=given["system_tokens"],
        turns=given["turns"] or default.turns,
        message_tokens=given["message_tokens"] or default.message_tokens,
        answer_tokens=given["output_tokens"] or default.answer_tokens,
        think=given["think"],
        force_length=force,
        given_answers=answers == "given",
    )
    return generated(spec, given["seed"], tag)


def _plan(given: dict[str, Any]) -> Plan:
    asked = [name for name in ("rates", "users", "trace_times") if given[name]]
    if len(asked) != 1:
        found = " and ".join("--" + name.replace("_", "-") for name in asked) or "none of them"
        raise click.UsageError(f"expected one of --rates, --users and --trace-times, not {found}")
    if given["requests"] is not None and given["duration"] is not None:
        raise click.UsageError("--requests and --duration: only one of them can end a load")
    loads = [Load(rate=rate) for rate in given["rates"] or ()]
    loads += [Load(users=users) for users in given["users"] or ()]
    counted = given["requests"] is not None
    slo = Slo(given["slo_ttft"], given["slo_itl"], given["slo_e2e"])
    return Plan(
        loads or [Load()],
        seconds=None if counted else given["duration"] or 60.0,
        requests=given["requests"],
        warm_up=_or(given["warm_up"], 0.0 if counted else 5.0),
        cool_down=_or(given["cool_down"], 0.0 if counted else 2.0),
        live=given["live"],
        is_uniform=given["uniform"],
        speed=given["speed"],
        seed=given["seed"],
        slo=slo if slo.is_asked else None,
        streams=not given["no_stream"],
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


@contextmanager
def _progress(plan: Plan) -> Iterator[OnProgress]:
    """A bar for each load. Drawn now and then, by the one who sends: a thread of its own would
    take the interpreter from it."""
    told, seen = TextColumn("{task.description}"), TextColumn("{task.fields[seen]}")
    columns = (told, BarColumn(24), TimeElapsedColumn(), seen)
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as shown:
        bar = _Bar(shown, plan)
        yield bar
        bar.finish()


class _Bar:
    """How far a load is, and what was seen so far."""

    def __init__(self, shown: Progress, plan: Plan) -> None:
        self._shown = shown
        self._plan = plan
        self._samples: list[Sample] = []
        self._drawn = 0.0

    def __call__(self, number: int, load: Load, sample: Sample | None) -> None:
        total = self._plan.requests or self._plan.total_seconds
        if sample is None:
            self.finish()
            self._samples, self._drawn = [], 0.0
            self._task = self._shown.add_task(
                f"{load.name} ({number + 1} of {len(self._plan.loads)})", total=total, seen=""
            )
            self._shown.refresh()
            return
        self._samples.append(sample)
        if sample.ended - self._drawn >= _REFRESH_SECONDS:
            self._drawn = sample.ended
            self._draw()

    def finish(self) -> None:
        """Of the load before, if there was one."""
        if self._samples:
            self._draw()
            total = self._plan.requests or self._plan.total_seconds
            self._shown.update(self._task, completed=total)
            self._shown.stop_task(self._task)

    def _draw(self) -> None:
        done = len(self._samples) if self._plan.requests else self._drawn
        self._shown.update(self._task, completed=done, seen=self._seen(), refresh=True)

    def _seen(self) -> str:
        times = [s.ttft for s in self._samples if s.ok and s.ttft is not None]
        failed = sum(not s.ok for s in self._samples)
        median = f", TTFT p50 {np.median(times) * 1e3:.0f} ms" if times else ""
        return f"{len(self._samples):,} answers{median}" + (f", {failed:,} failed" * bool(failed))
