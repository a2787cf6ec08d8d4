"""`inferway COMMAND`. Each command lives in a module of its own and is imported when called."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from inferway import __version__
from inferway.cli.flag import Flag

# command -> (module, function, one line of help); modules load only when the command is used,
# so that `inferway --help` answers at once.
COMMANDS = {
    "bench": ("inferway.cli.bench", "bench", "Measure gateways, engines and routing policies."),
    "completion": ("inferway.cli.completion", "completion", "Print a shell's completion script."),
    "config": ("inferway.cli.config", "config", "Check a configuration, or show what is in force."),
    "demo": ("inferway.cli.demo", "demo", "Show cache-aware routing on three simulated engines."),
    "doctor": ("inferway.cli.doctor", "doctor", "Find what is wrong here, and name the cure."),
    "epp": ("inferway.cli.epp", "epp", "Pick endpoints for Envoy and the Gateway API."),
    "keys": ("inferway.cli.keys", "keys", "Make API keys for the gateway's callers."),
    "model": ("inferway.cli.model", "model", "Fetch and prepare a small real model."),
    "serve": ("inferway.cli.serve", "serve", "Route OpenAI requests to a fleet of vLLM engines."),
    "simulate": ("inferway.cli.simulate", "simulate", "Run a simulated vLLM engine."),
    "status": ("inferway.cli.status", "status", "Show the fleet of a running gateway."),
    "tail": ("inferway.cli.tail", "tail", "Print published decisions and KV events as they come."),
    "top": ("inferway.cli.status", "top", "Show the fleet of a running gateway, live."),
    "vllm": ("inferway.cli.vllm", "vllm", "Run vLLM with Inferway's structured output."),
}

_WITHOUT_ENVIRONMENT = ("bench",)  # a measurement is the same whatever the environment says


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            known = f"known: {', '.join(sorted(COMMANDS))}"
            close = get_close_matches(args[0], COMMANDS, n=1)
            cure = f"did you mean {close[0]!r}?" if close else known
            raise click.UsageError(f"no command {args[0]!r}; {cure}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in sorted(COMMANDS)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Of the table: no command is imported for it."""
        names = [name for name in sorted(COMMANDS) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name][2]) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Ask `inferway COMMAND --help` for a command's flags, with examples.",
)
@click.version_option(__version__, prog_name="inferway")
def main() -> None:
    """A KV-cache-aware inference layer for vLLM fleets."""


def variables() -> set[str]:
    """The environment variables of all commands' flags. It imports every command."""
    context = click.Context(main)
    found = set()
    for name in COMMANDS:
        if name not in _WITHOUT_ENVIRONMENT:
            command = main.get_command(context, name)
            assert command is not None
            found |= {flag.variable for flag in _flags(command) if flag.variable is not None}
    return found


def _flags(command: click.Command) -> Iterator[Flag]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    for each in below:
        yield from _flags(each)
    yield from (param for param in command.params if isinstance(param, Flag))
