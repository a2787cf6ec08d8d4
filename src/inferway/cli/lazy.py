"""A group of commands that are imported on use, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

# command -> (module, function, one line of help)
Table = Mapping[str, tuple[str, str, str]]


class LazyGroup(click.Group):
    """Its commands live in the modules of `table`, which load only when a command is used."""

    def __init__(self, *arguments: Any, table: Table, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.table:
            return None
        module, function, _ = self.table[cmd_name]
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in self.table and not ctx.resilient_parsing:
            known = f"known: {', '.join(sorted(self.table))}"
            close = get_close_matches(args[0], self.table, n=1)
            cure = f"did you mean {close[0]!r}?" if close else known
            raise click.UsageError(f"no command {args[0]!r}; {cure}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][2]) for name in sorted(self.table)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Of the table: no command is imported for it."""
        names = [name for name in sorted(self.table) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.table[name][2]) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)
