"""What every benchmark keeps of a run, and how: JSON lines.

The first line says what ran on what: benchmark, seeds, machine (with versions and commit), command,
and the plan. Each further line is one measurement, `{"KIND": {...}}`, where KIND is a field of the
run; a field that is a list of measurements has a line for each.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from inferway_bench.compare import Figure as Figure
from inferway_bench.machine import Machine
from inferway_bench.processes import BenchError
from inferway_bench.rows import Goal as Goal

_ABOUT = ("machine", "command", "plan")  # the head's, whatever their type


class Run(msgspec.Struct, frozen=True):
    """A whole run of any benchmark."""

    machine: Machine
    command: str

    @property
    def seeds(self) -> list[int]:
        """Of what was drawn; empty where nothing was."""
        return []

    @property
    def is_of_machine(self) -> bool:
        """Whether its times are those of the machine that it ran on, and not another's."""
        return not self.is_virtual

    @property
    def is_quick(self) -> bool:
        """A look, and not a result."""
        return "--quick" in self.command.split()

    @property
    def is_virtual(self) -> bool:
        """Whether time is simulated, so that nothing a machine does changes a figure."""
        return False

    def goals(self) -> list[Goal]:
        """What was asked of it, judged."""
        return []

    def losses(self) -> list[str]:
        """Where others are ahead of ours, beyond the noise."""
        return []

    def figures(self) -> list[Figure]:
        """What it is compared by with another run."""
        return []


AnyRun = TypeVar("AnyRun", bound=Run)


def write_run(benchmark: str, run: Run) -> bytes:
    """JSON lines."""
    head = {"benchmark": benchmark, "seeds": run.seeds}
    lines = []
    values = msgspec.to_builtins(run)
    for name, is_many in _measured(type(run)).items():
        value = values[name]
        if value is not None:
            values.pop(name)
            lines += [{name: one} for one in value] if is_many else [{name: value}]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in ({**head, **values}, *lines))


def read_run(text: bytes, kind: type[AnyRun]) -> AnyRun:
    """What `write_run` wrote. Raises msgspec.MsgspecError."""
    head, *lines = (msgspec.json.decode(line, type=dict[str, Any]) for line in text.splitlines())
    measured = _measured(kind)
    found: dict[str, Any] = {name: [] for name, is_many in measured.items() if is_many} | head
    for line in lines:
        for name, value in line.items():
            if measured.get(name):
                found[name].append(value)
            else:
                found[name] = value
    return msgspec.convert(found, kind, str_keys=True)  # JSON has no others


def load_run(path: Path, kind: type[AnyRun]) -> AnyRun:
    """Raises BenchError."""
    try:
        return read_run(path.read_bytes(), kind)
    except (OSError, ValueError, msgspec.MsgspecError) as e:
        raise BenchError(f"{path}: not a stored {kind.__name__}: {e}") from e


def _measured(kind: type[Run]) -> dict[str, bool]:
    """The fields that are measurements -> whether they are lists of them."""
    found = {}
    for field in msgspec.structs.fields(kind):
        parts = typing.get_args(field.type) or (field.type,)
        has_structs = any(isinstance(p, type) and issubclass(p, msgspec.Struct) for p in parts)
        if has_structs and field.name not in _ABOUT:
            found[field.name] = typing.get_origin(field.type) is list
    return found
