"""Engines that are listed on the command line: plain URLs, or `--engine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from inferway.cli.flag import option
from inferway.cli.key_options import key_option
from inferway.config import EngineSettings, parse_engine

ENGINE_URLS: Any = click.argument("urls", nargs=-1, metavar="[ENGINE_URL]…")

ENGINE: Any = option(
    "--engine",
    "engines",
    multiple=True,
    metavar="URL[,KEY=VALUE…]",
    help="Use this engine, as a plain ENGINE_URL does: http://HOST:PORT[/PATH] or unix:/PATH. "
    "Repeat the flag for each engine. The keys are name, events, replay, block_size, api_key_env, "
    "role, kv_connector, kv_bootstrap, kv_host and label.NAME; the engine itself is asked for what "
    "is left out.",
)

ENGINE_CA: Any = key_option(
    "--engine-ca",
    "engine_ca",
    type=click.Path(),
    metavar="FILE",
    help="Trust the PEM certificates in this file to sign those of https engines.  "
    "[default: the system's]",
)
ENGINE_CERT: Any = key_option(
    "--engine-cert",
    "engine_cert",
    type=click.Path(),
    metavar="FILE",
    help="Show the PEM certificate chain in this file to https engines that ask for one.",
)

ENGINE_KEY: Any = key_option(
    "--engine-key",
    "engine_key",
    type=click.Path(),
    metavar="FILE",
    help="The PEM key of --engine-cert.",
)

ENGINE_TLS = (ENGINE_CA, ENGINE_CERT, ENGINE_KEY)


def listed(urls: Sequence[str], engines: Sequence[str]) -> list[EngineSettings]:
    """The engines that were given. Plain URLs win over --engine's variable in the environment.
    Raises ConfigError."""
    context = click.get_current_context(silent=True)
    source = context and context.get_parameter_source("engines")
    if urls and source is ParameterSource.ENVIRONMENT:
        engines = ()
    found = [parse_engine(spec, "engine") for spec in urls]
    return found + [parse_engine(spec) for spec in engines]
