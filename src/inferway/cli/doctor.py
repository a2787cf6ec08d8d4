"""`inferway doctor`: says what is wrong here, and the cure."""

from __future__ import annotations

import asyncio
import os

import click

from inferway.cli.command import Command, section
from inferway.cli.engine_options import ENGINE, ENGINE_CA, ENGINE_URLS, listed
from inferway.config import ServeSettings, check_engines
from inferway.doctor.examination import examine
from inferway.doctor.rules import CheckResult, Level
from inferway.errors import ConfigError
from inferway.prompts.files.prepare import cache_dir

COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command(cls=Command)
@section(
    "Engines",
    ENGINE_URLS,
    ENGINE,
    ENGINE_CA,
    example="inferway doctor http://10.0.0.5:8000",
)
def doctor(urls: tuple[str, ...], engines: tuple[str, ...], engine_ca: str | None) -> None:
    """Check this machine, the hub and the given engines, and name the cure of what is wrong.

    The exit status is 1 if something must be mended; warnings alone leave it at 0.
    """
    try:
        asked = listed(urls, engines)
        check_engines(asked)
        tls = ServeSettings(engines=asked, engine_ca=engine_ca).engine_tls()
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    findings = asyncio.run(examine(asked, cache_dir(), os.environ, tls))
    for finding in findings:
        _show(finding)
    if any(finding.level is Level.FAIL for finding in findings):
        raise SystemExit(1)


def _show(finding: CheckResult) -> None:
    level = click.style(f"{finding.level:<5}", fg=COLORS[finding.level])
    click.echo(f"{level}{finding.subject}: {finding.evidence}")
    if finding.cure:
        click.echo(f"     cure: {finding.cure}")
