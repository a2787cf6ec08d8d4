"""A group of commands that are imported on use, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# command -> (module, function, one line of help)
Table = Mapping[str, tuple[str, str, str]]


class LazyGroup(click.Group):
    """A group of commands whose modules load only when a command is used.

    `table` has the commands of this distribution. `entry_points` is a group of entry points, each a
    command of another distribution; it is read only if a command is not in the table or all
    commands are listed. `elsewhere` maps commands to the distribution that has them, for users who
    have not installed it, and one line of help."""

    def __init__(
        self,
        *arguments: Any,
        table: Table,
        entry_points: str | None = None,
        elsewhere: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.table = table
        self._entry_points = entry_points
        self._elsewhere = elsewhere

    @cached_property
    def known(self) -> Table:
        """All commands of the group."""
        if self._entry_points is None:
            return self.table
        from importlib.metadata import entry_points

        others = {
            each.name: (each.module, each.attr, self._summary(each))
            for each in entry_points(group=self._entry_points)
        }
        return {**others, **self.table}

    def _summary(self, command: EntryPoint) -> str:
        """Return the command's own line, or that of its distribution."""
        if command.name in self._elsewhere:
            return self._elsewhere[command.name][1]
        return "" if command.dist is None else str(command.dist.metadata["Summary"] or "")

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        table = self.table if cmd_name in self.table else self.known
        if cmd_name not in table:
            return None
        module, function, _ = table[cmd_name]
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            self._require(name, ctx)
        return super().resolve_command(ctx, args)

    def _require(self, name: str, ctx: click.Context) -> None:
        """Raises UsageError with the cure."""
        if name in self.known:
            return
        close = get_close_matches(name, self.known, n=1)
        if name in self._elsewhere:
            distribution = self._elsewhere[name][0]
            folder = distribution.removeprefix("inferway-")
            cure = f"it is part of {distribution}: pip install ./{folder} in a checkout"
        elif close:
            cure = f"did you mean {close[0]!r}?"
        else:
            cure = f"known: {', '.join(sorted(self.known))}"
        raise click.UsageError(f"no command {name!r}; {cure}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.known[name][2]) for name in sorted(self.known)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the commands of the table without importing them."""
        names = [name for name in sorted(self.known) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.known[name][2]) for name in names]
        return items or click.Command.shell_complete(self, ctx, incomplete)
