"""`inferway COMMAND`. Each command lives in a module of its own and is imported when called."""

from __future__ import annotations

from importlib import import_module

import click

from inferway import __version__

# command -> (module, function, one line of help); modules load only when the command is used,
# so that `inferway --help` answers at once.
COMMANDS = {
    "bench": ("inferway.cli.bench", "bench", "Measure the gateway beside its peers."),
    "config": ("inferway.cli.config", "config", "Check and show configurations."),
    "demo": ("inferway.cli.demo", "demo", "Show all of it on an embedded simulated fleet."),
    "doctor": ("inferway.cli.doctor", "doctor", "Say what is wrong here, and the cure."),
    "epp": ("inferway.cli.epp", "epp", "Pick endpoints for Envoy (Gateway API)."),
    "keys": ("inferway.cli.keys", "keys", "Make API keys for callers."),
    "model": ("inferway.cli.model", "model", "Prepare a small real model."),
    "serve": ("inferway.cli.serve", "serve", "Route OpenAI requests to a fleet of engines."),
    "simulate": ("inferway.cli.simulate", "simulate", "Run a simulated vLLM engine."),
    "tail": ("inferway.cli.tail", "tail", "Print published events as they come."),
    "vllm": ("inferway.cli.vllm", "vllm", "Run vLLM with our structured output."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, function, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="inferway")
def main() -> None:
    """A KV-cache-aware inference layer for vLLM fleets."""
