"""The tree keeps the shape that docs/architecture.md draws."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from inferway.openai_api.requests import Body

PACKAGES = Path(__file__).parents[1] / "src"
SRC = PACKAGES / "inferway"  # core, which imports none of the others
OTHERS = ["inferway_console", "inferway_llmd", "inferway_ray", "inferway_sim"]

# From the ground up: a room imports only what stands above it in this list. A room is a folder, or
# a module directly in inferway/; parts of a room that stand apart have a line of their own.
ROOMS = [
    "errors",
    "model",
    "signals",
    "tasks",
    "loop_turns",
    "metrics",
    "config",
    "openai_api",
    "kv/blocks",
    "prompts",
    "kv/index",
    "kv/events",
    "scheduling",
    "routing/limits",
    "routing/structured_gate",
    "routing",
    "upstream",
    "fleet/discovery",
    "fleet",
    "indexer",
    "extension",
    "telemetry",
    "cluster/bus",
    "http",
    "doctor",
    "serving",
    "servers",
    "app",
    "cluster",
    "cli",
]

# The simulator is what index and data plane are tested against: it shares none of their code.
NOT_OF_THE_SIMULATOR = {"kv/index", "kv/events", "scheduling", "routing", "fleet", "http"}
BESIDE_THE_SIMULATOR = ("inferway_sim/demo/", "inferway_sim/cli/")

# Pure rooms take time as an argument and never wait.
PURE = [
    *("kv/blocks", "kv/index", "kv/events", "openai_api", "scheduling", "routing/limits"),
    *("metrics.py", "doctor/rules.py"),
    *(f"routing/{path.name}" for path in (SRC / "routing").glob("*.py")),
    *(f"routing/structured_gate/{name}.py" for name in ("costs", "counts", "quarantine")),
    *(
        f"cluster/bus/{name}.py"
        for name in ("inbox", "messages", "outbox", "peer", "peer_messages", "sound")
    ),
]
FORBIDDEN_IN_PURE = {"asyncio", "socket", "threading", "time", "zmq", "aiohttp", "uvloop"}


def modules(room: str = "", package: Path = SRC) -> list[Path]:
    path = package / room
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def all_modules() -> list[Path]:
    """Those of all packages."""
    return [path for package in ("inferway", *OTHERS) for path in modules("", PACKAGES / package)]


def room_of(module: str) -> str:
    """The room of a module that is written as a path below `src/inferway`."""
    name = module.removesuffix(".py")
    rooms = [room for room in ROOMS if f"{name}/".startswith(f"{room}/")]
    assert rooms, f"{module} is in no room of the list"
    return max(rooms, key=len)


@cache
def imports(path: Path) -> frozenset[str]:
    return frozenset(_imports(path))


@cache
def names_imported_from(path: Path) -> frozenset[str]:
    """Each with its module before it."""
    froms = [node for node in _nodes(path) if isinstance(node, ast.ImportFrom)]
    return frozenset(f"{node.module}.{alias.name}" for node in froms for alias in node.names)


@cache
def _nodes(path: Path) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def _imports(path: Path) -> Iterator[str]:
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            continue
        assert node.level == 0, f"{path}: relative import"
        assert node.module is not None
        if node.module == "inferway":
            yield from (f"inferway.{alias.name}" for alias in node.names)
        else:
            yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_one_way(path: Path) -> None:
    ours = {name for name in imports(path) if name.startswith("inferway.")}
    if path == SRC / "__init__.py" or not ours:
        return
    room = room_of(str(path.relative_to(SRC)))

    found = rooms_of(ours)

    assert found <= set(ROOMS[: ROOMS.index(room) + 1]), f"{path}: may not import {sorted(found)}"


def rooms_of(names: Iterable[str]) -> set[str]:
    """The rooms of modules of core, by their names."""
    below = {name.split(".", 1)[1] for name in names} - {"__version__"}
    return {room_of(name.replace(".", "/")) for name in below}


@pytest.mark.parametrize("package", ["inferway", *OTHERS])
def test_core_imports_no_other_package_and_those_not_each_other(package: str) -> None:
    for path in modules("", PACKAGES / package):
        tops = {name.split(".")[0] for name in imports(path)}

        assert not tops & ({*OTHERS} - {package}), path


def test_the_simulator_shares_no_code_with_what_it_tests() -> None:
    for path in modules("", PACKAGES / "inferway_sim"):
        if not str(path.relative_to(PACKAGES)).startswith(BESIDE_THE_SIMULATOR):
            ours = {name for name in imports(path) if name.startswith("inferway.")}

            assert not rooms_of(ours) & NOT_OF_THE_SIMULATOR, path


def test_every_room_of_the_list_is_there() -> None:
    there = [room for room in ROOMS if (SRC / room).is_dir() or (SRC / f"{room}.py").is_file()]

    assert there == ROOMS


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_know_no_clock_socket_or_thread(room: str) -> None:
    assert modules(room)
    for path in modules(room):
        found = {name.split(".")[0] for name in imports(path)}

        assert not found & FORBIDDEN_IN_PURE, f"{path}: {found & FORBIDDEN_IN_PURE}"


def test_importing_inferway_loads_none_of_its_dependencies() -> None:
    code = (
        "import sys; before = set(sys.modules); import inferway;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "['inferway']"


def test_counters_are_plain_integers_that_one_collector_reads() -> None:
    """prometheus_client's own take a lock and a microsecond each. The engine and its stand-in have
    theirs."""
    live = {f"prometheus_client.{name}" for name in ("Counter", "Gauge", "Histogram", "Summary")}
    for path in all_modules():
        if path.is_relative_to(PACKAGES / "inferway_sim"):
            continue
        assert not names_imported_from(path) & live, path


def test_what_is_oldest_is_taken_from_ordered_dicts() -> None:
    """A plain dict goes through all that was deleted before its first item, each time: to take
    50,000 of 150,000 away one by one took 3.5 s."""
    first = re.compile(r"next\(iter\(self\.(\w+)\b")
    for path in all_modules():
        source = path.read_text()
        for name in first.findall(source):
            assert not re.search(rf"\b{name}: (list\[)?dict\[", source), f"{path}: {name}"


COLLECTIONS = {"dict", "list", "set", "tuple", "deque", "defaultdict", "OrderedDict", "Counter"}


def test_no_collection_is_made_by_calling_its_type_with_parameters() -> None:
    """`list[int]()` takes 250 ns, `[]` with a type at its name 15 ns: seen in the look-up of a
    prompt, which took a third longer for it."""
    for path in all_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                made = node.func.value
                is_collection = isinstance(made, ast.Name) and made.id in COLLECTIONS
                assert not is_collection, f"{path}:{node.lineno}"


def test_signals_are_listened_to_until_the_process_has_gone() -> None:
    """A handler of an event loop goes with it, and the next signal ends the process
    (`inferway.signals`)."""
    bench = Path(__file__).parents[1] / "bench" / "src"
    for path in (*all_modules(), *bench.rglob("*.py")):
        assert "add_signal_handler" not in path.read_text(), path


def kinds_asked_for(tree: ast.Module) -> Iterator[int]:
    """The lines that look at which kind of request a body is."""
    kinds = {each.__name__ for each in get_args(Body)} | {"Body", "PromptBody", "ReadBody"}
    for node in ast.walk(tree):
        looked_at: Sequence[ast.expr] = ()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            looked_at = node.args[1:]
        elif isinstance(node, ast.Compare):
            looked_at = (node.left, *node.comparators)
        elif isinstance(node, ast.MatchClass):
            looked_at = (node.cls,)
        names = {ast.unparse(part) for each in looked_at for part in ast.walk(each)}
        if not kinds.isdisjoint(name.rpartition(".")[2] for name in names):
            yield looked_at[0].lineno


def test_only_openai_api_asks_which_kind_of_request_a_body_is() -> None:
    """A kind that is added has a row and a type there, and no other place has to know it."""
    for path in all_modules():
        if not path.is_relative_to(SRC / "openai_api"):
            assert not [*kinds_asked_for(ast.parse(path.read_text()))], path


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(body, ChatRequest | requests.MessagesRequest)",
        "type(body) is CompletionRequest",
        "match body:\n    case ChatRequest():\n        pass",
    ],
)
def test_a_look_at_the_kind_of_a_request_is_found(line: str) -> None:
    assert [*kinds_asked_for(ast.parse(line))]
