"""`inferway doctor`: says what is wrong here, and the cure."""

from __future__ import annotations

import asyncio
import os

import click

from inferway.config import ServeSettings, check_engines, parse_engine
from inferway.doctor.examination import examine
from inferway.doctor.rules import Finding, Level
from inferway.errors import ConfigError
from inferway.prompts.prepare import cache_dir

COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command()
@click.argument("urls", nargs=-1, metavar="[ENGINE_URL]…")
@click.option(
    "--engine",
    "specs",
    multiple=True,
    metavar="URL[,KEY=VALUE...]",
    help="An engine to examine as well, the same as a plain ENGINE_URL; repeat for each.",
)
@click.option(
    "--engine-ca", metavar="FILE", help="Trust these certificates (PEM) to sign https engines'."
)
def doctor(urls: tuple[str, ...], specs: tuple[str, ...], engine_ca: str | None) -> None:
    """Check this machine, the hub and the given engines; exit 1 if something must be mended."""
    try:
        engines = [
            *(parse_engine(spec, "engine") for spec in urls),
            *(parse_engine(spec) for spec in specs),
        ]
        check_engines(engines)
        tls = ServeSettings(engines=engines, engine_ca=engine_ca).engine_tls()
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    findings = asyncio.run(examine(engines, cache_dir(), os.environ, tls))
    for finding in findings:
        _show(finding)
    if any(finding.level is Level.FAIL for finding in findings):
        raise SystemExit(1)


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:<5}", fg=COLORS[finding.level])
    click.echo(f"{level}{finding.subject}: {finding.evidence}")
    if finding.cure:
        click.echo(f"     cure: {finding.cure}")
