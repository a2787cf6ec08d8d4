"""The group of commands. Each command lives in a module of its own and is imported when called."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from inferway import __version__
from inferway.cli.early import asks_for_json
from inferway.cli.flag import FlagOption
from inferway.cli.lazy import LazyGroup

COMMANDS = {
    "completion": ("inferway.cli.completion", "completion", "Print a shell's completion script."),
    "config": ("inferway.cli.config", "config", "Check a configuration, or show what is in force."),
    "demo": (
        "inferway_sim.cli.demo",
        "demo",
        "Show cache-aware routing on simulated engines.",
    ),
    "doctor": ("inferway.cli.doctor", "doctor", "Find what is wrong here, and name the fix."),
    "drain": ("inferway.cli.drain", "drain", "Take an engine out of a running gateway's fleet."),
    "epp": ("inferway_llmd.cli", "epp", "Pick endpoints for Envoy and the Gateway API."),
    "explain": ("inferway_console.cli.explain", "explain", "Say why a request went where it went."),
    "keys": ("inferway.cli.keys", "keys", "Make API keys for the gateway's callers."),
    "model": ("inferway_sim.cli.model", "model", "Fetch and prepare a small real model."),
    "record": ("inferway_console.cli.record", "record", "Read the records of requests."),
    "serve": ("inferway.cli.serve", "serve", "Route OpenAI requests to a fleet of vLLM engines."),
    "simulate": ("inferway_sim.cli.simulate", "simulate", "Run a simulated vLLM engine."),
    "status": ("inferway.cli.status", "status", "Show the fleet of a running gateway."),
    "tail": ("inferway.cli.tail", "tail", "Print published decisions and KV events as they come."),
    "top": ("inferway.cli.status", "top", "Show the fleet of a running gateway, live."),
    "vllm": ("inferway.cli.vllm", "vllm", "Run vLLM with Inferway's structured output."),
}
# command -> (the distribution that has it, one line of help)
ELSEWHERE = {
    "bench": ("inferway-bench", "Measure gateways, engines and routing policies."),
    "what-if": ("inferway-bench", "Replay recorded requests on another fleet or policy."),
}


class Program(LazyGroup):
    """The command `inferway`. Errors of the command line are a line of JSON if the log is to be
    JSON."""

    def main(self, *args: Any, **how: Any) -> Any:
        given = args[0] if args else how.get("args")
        words = list(sys.argv[1:] if given is None else given)
        if not asks_for_json(words, os.environ) or how.get("standalone_mode") is False:
            return super().main(*args, **how)
        try:
            sys.exit(super().main(*args, **{**how, "standalone_mode": False}))
        except click.ClickException as e:
            from inferway.cli.logs import refuse_words

            refuse_words(e)
        except click.Abort:
            sys.exit(1)


@click.group(
    cls=Program,
    table=COMMANDS,
    entry_points="inferway.commands",
    elsewhere=ELSEWHERE,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Ask `inferway COMMAND --help` for a command's flags, with examples.",
)
@click.version_option(__version__, prog_name="inferway")
def main() -> None:
    """A KV-cache-aware inference layer for vLLM fleets."""


def variables() -> set[str]:
    """Return the environment variables of all commands' flags. It imports every command."""
    context = click.Context(main)
    found = set()
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        found |= {flag.variable for flag in _flags(command) if flag.variable is not None}
    return found


def _flags(command: click.Command) -> Iterator[FlagOption]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    for each in below:
        yield from _flags(each)
    yield from (param for param in command.params if isinstance(param, FlagOption))
