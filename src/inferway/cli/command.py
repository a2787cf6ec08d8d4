"""A command whose `--help` has its flags in sections, each with an example."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from inferway.cli.flag import PREFIX, FlagOption, is_service_link

Decorator = Callable[[Any], Any]

_ENVIRONMENT = (
    "An environment variable sets each flag, too: INFERWAY_ and the flag's name, as in "
    "INFERWAY_{name} for --{flag}. Lists are split at white space there. Flags win over the "
    "environment{file}."
)

# Variables that no flag reads: the program, the engine's plugin, and the scripts of a checkout do.
OTHERS: Final = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "STRUCTURED", "REPORT_VALIDITY", "COMPLETE"),
        *("VLLM_VENV", "VLLM_PYTHON", "FLEET_FULL", "ENVOY_VERSION"),
    )
)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a command's help."""

    title: str
    example: str = ""  # one line of a shell


def section(title: str, *options: Decorator, example: str = "") -> Decorator:
    """Decorates a command with options that stand together in its help."""
    part = Section(title, example)

    def decorate(command: Any) -> Any:
        before = len(getattr(command, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        for param in command.__click_params__[before:]:
            param.section = part
        return command

    return decorate


class Command(click.Command):
    """A command whose help shows flags in sections and a sentence about the environment, and which
    warns of unknown variables."""

    warns = True  # on standard error, before it runs

    def invoke(self, ctx: click.Context) -> Any:
        if self.warns:
            for warning in warnings_of(ctx):
                click.echo(f"{ctx.command_path}: {warning}", err=True)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[Section, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            part = getattr(param, "section", Section("Options"))
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                parts.setdefault(part, []).append(record)
        for part, records in parts.items():
            with formatter.section(part.title):
                formatter.write_dl(records, col_max=26)
                if part.example:
                    formatter.write(f"\n  Example: {part.example}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        flags = [param for param in self.params if isinstance(param, FlagOption) and param.variable]
        if not flags:
            return
        names = [max(flag.opts, key=len).lstrip("-") for flag in flags]
        name = next((each for each in names if "-" in each), names[0])
        file = ", which wins over the file of --config" if "config" in names else ""
        text = _ENVIRONMENT.format(name=name.replace("-", "_").upper(), flag=name, file=file)
        formatter.write_paragraph()
        formatter.write_text(text)


class ServerCommand(Command):
    """A command that writes warnings of unknown variables into its log once the log is set up."""

    warns = False


def warnings_of(ctx: click.Context) -> Iterator[str]:
    """Yield the variables with our prefix that no command reads."""
    from inferway.cli.main import variables  # it imports commands, and so this module

    if ctx.command.params and all(
        not isinstance(param, FlagOption) for param in ctx.command.params
    ):
        return
    own = {param.variable for param in ctx.command.params if isinstance(param, FlagOption)}
    if not any(_unknown_variables(os.environ, {str(name) for name in own}, ())):
        return  # the usual case: no other command needs to be imported
    yield from _unknown_variables(os.environ, variables(), _mentioned(ctx))


def _mentioned(ctx: click.Context) -> Iterator[str]:
    """Yield the values that the command was given, and the text of its file of settings."""
    for value in ctx.params.values():
        yield str(value)
    file = ctx.params.get("config")
    if isinstance(file, Path) and file.is_file():
        yield file.read_text(errors="replace")


def _unknown_variables(
    environ: Mapping[str, str], known: Collection[str], mentioned: Iterable[str]
) -> Iterator[str]:
    """Yield one sentence for each variable with our prefix that nothing reads. A variable whose
    name stands in a `mentioned` text (a flag's value, a file of settings) is no such variable: it
    holds a secret that the text refers to."""
    texts = "\n".join(mentioned)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in known or name in OTHERS or name in texts:
            continue
        if is_service_link(name, environ):
            continue
        endings = [each.removeprefix(PREFIX) for each in known]
        close = get_close_matches(name.removeprefix(PREFIX), endings, n=1)
        meant = (
            f"; did you mean {PREFIX}{close[0]}?" if close else "; unset it, or correct its name"
        )
        yield f"the environment variable {name} is not known and has no effect{meant}"
