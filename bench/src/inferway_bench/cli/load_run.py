"""What `inferway bench load` does with its flags."""

from __future__ import annotations

import os
import secrets
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from inferway.errors import InferwayError
from inferway_bench import plotting
from inferway_bench.cli.shown import show, show_comparison
from inferway_bench.compare import compare_figures
from inferway_bench.loading.client import Target
from inferway_bench.loading.generated import ChatSpec
from inferway_bench.loading.report import LOAD, pictures
from inferway_bench.loading.results import LoadRun, Slo
from inferway_bench.loading.run import Load, OnProgress, Plan, run_load
from inferway_bench.loading.samples import Sample
from inferway_bench.loading.sources import Source, generated, of_file
from inferway_bench.results import load_run, write_run

_REFRESH_SECONDS = 1.0  # of the progress bar, whose drawing takes a millisecond
_INTERRUPTED = 130


def measure(url: str, given: dict[str, Any]) -> None:
    """`given`: the flags. Ends the process with status 1 if the run is worse than the old one, and
    with 130 if it was interrupted."""
    try:
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
        show_comparison(compare_figures(old, run, old.figures(), run.figures()), given["tolerance"])
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
        raise click.UsageError(
            "--trace-times: of which trace? The cure: --dataset mooncake, or a file"
        )
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
