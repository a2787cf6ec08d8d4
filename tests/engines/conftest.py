"""Two real engines and the gateway in front of them, once for all tests of this folder.

`make fleet` installs what they need first (scripts/fleet.sh); nothing here skips.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.engine import RealEngine, last_lines, wait_until_ready
from tests.engines.nixl import NixlEngine
from tests.engines.program import Program
from tests.engines.small_model import first_layers
from tests.engines.vllm_code import INSTALLED, SOURCES, VllmCode, code_of
from tests.engines.waiting import wait_until

from inferway_sim.prepare import prepare_smollm2

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Small enough that the tests' own traffic drives blocks out: 159 blocks, 5,088 tokens.
CACHE = ("--num-gpu-blocks-override", "160")

FULL = os.environ.get("INFERWAY_FLEET_FULL") == "1"  # `make fleet-full`

# Engines of their own settings, and what others show in less time.
collect_ignore = [] if FULL else ["test_structured_full.py"]

TEST_SECONDS = 400  # two engines on busy cores take more than a minute to start

Say = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What kills an engine comes last: starting it again takes half a minute. Just before comes
    what has engines of its own until the end."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.fleet)
        item.add_marker(pytest.mark.timeout(TEST_SECONDS))
    last = (
        "test_kv_references.py",
        "test_kv_transfer.py",
        "test_killed_prefill.py",
        "test_killed_engine.py",
    )
    items.sort(key=lambda item: last.index(item.path.name) if item.path.name in last else -1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report shows how the logs of engines and gateway end."""
    report = yield
    if report.failed:
        for log in item.config.stash.get(LOGS, []):
            report.sections.append((f"end of {log.name}", "\n".join(last_lines(log, 40))))
    return report


LOGS = pytest.StashKey[list[Path]]()


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """A line on the terminal, whatever is captured."""
    reporter = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    capture = pytestconfig.pluginmanager.get_plugin("capturemanager")
    assert reporter is not None
    assert capture is not None

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"  {text}")

    return write


@pytest.fixture(scope="session")
def new_log(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A log file by name; its end is shown with every failed test."""
    directory = tmp_path_factory.mktemp("logs")
    logs = pytestconfig.stash.setdefault(LOGS, [])

    def make(name: str) -> Path:
        logs.append(directory / f"{name}.log")
        return logs[-1]

    return make


@pytest.fixture(scope="session")
def whole_model() -> Path:
    """SmolLM2: for tests that need answers which mean something."""
    return prepare_smollm2(weights=True)


@pytest.fixture(scope="session")
def small_model(whole_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its first layers, which take a fraction of the time."""
    return first_layers(whole_model, tmp_path_factory.mktemp("model") / "smollm2")


@pytest.fixture(scope="session")
def model_dir(whole_model: Path, small_model: Path) -> Path:
    """What most engines serve: with `make fleet-full` the whole model."""
    return whole_model if FULL else small_model


VLLM_VENV = os.environ.get("INFERWAY_VLLM_VENV", str(ROOT / ".venv-vllm"))


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The command."""
    return installed(Path(VLLM_VENV) / "bin" / "vllm", "install_vllm.sh")


@pytest.fixture(scope="session", params=[INSTALLED, *SOURCES])
def vllm_code(request: pytest.FixtureRequest, vllm: Path) -> VllmCode:
    """The installed version's code, and that of each newer one."""
    return code_of(request.param, vllm)


@pytest.fixture(scope="session")
def nixl() -> Path:
    """Its package, in the folder that NixlEngine puts on the engines' PYTHONPATH."""
    return installed(Path(f"{VLLM_VENV}-nixl") / "nixl", "install_nixl.sh")


@pytest.fixture(scope="session")
def torchvision() -> Path:
    """The folder that is to be on the PYTHONPATH of engines of vision models."""
    return installed(
        Path(f"{VLLM_VENV}-torchvision") / "torchvision", "install_torchvision.sh"
    ).parent


@pytest.fixture(scope="session")
def guidellm() -> Path:
    """The command."""
    return installed(Path(f"{VLLM_VENV}-guidellm") / "bin" / "guidellm", "install_guidellm.sh")


def installed(command: Path, script: str) -> Path:
    if not command.exists():
        pytest.fail(f"{command} is not there; `make fleet` installs it (scripts/{script})")
    return command


@pytest.fixture(scope="session")
def engines(
    vllm: Path, model_dir: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[Sequence[RealEngine]]:
    """Two engines, ready. The first of them renders for others."""
    flags = [(*CACHE, "--enable-scale-out"), CACHE]
    made = [RealEngine(vllm, model_dir, new_log(f"engine-{i}"), flags[i]) for i in range(2)]
    try:
        for engine in made:
            engine.start()
        wait_until_ready(made, say)
        yield made
    finally:
        for engine in made:
            engine.kill()


@pytest.fixture(scope="session")
def nixl_engines(
    vllm: Path,
    nixl: Path,  # noqa: ARG001
    small_model: Path,
    new_log: Callable[[str], Path],
    say: Say,
) -> Iterator[tuple[NixlEngine, NixlEngine]]:
    """Two engines that hand KV blocks to each other, ready. The first computes what it cannot get,
    the second fails then. Tests that ask for them come late: they are there to the end."""
    made = (
        NixlEngine(vllm, small_model, new_log("engine-nixl-0")),
        NixlEngine(vllm, small_model, new_log("engine-nixl-1"), on_failed_load="fail"),
    )
    try:
        for engine in made:
            engine.start()
        wait_until_ready(made, say)
        for engine in made:
            engine.use_all_cores()
        yield made
    finally:
        for engine in made:
            engine.kill()


@pytest.fixture(scope="session")
def two_legs(
    nixl_engines: tuple[NixlEngine, NixlEngine], new_log: Callable[[str], Path]
) -> Iterator[str]:
    """The URL of `inferway serve` that has the first engine compute all prompts for the second."""
    with serve_in_two_legs(*nixl_engines, new_log("gateway-two-legs")) as program:
        yield program.url


@pytest.fixture(scope="session")
def gateway(engines: Sequence[RealEngine], new_log: Callable[[str], Path]) -> Iterator[str]:
    """The URL of `inferway serve` in front of both engines."""
    with serve(engines, new_log("gateway")) as program:
        yield program.url


def serve(
    engines: Sequence[RealEngine], log: Path, *flags: str, reason: str = "kv-aware"
) -> Program:
    """`inferway serve`, which knows no more than the engines' URLs and what `flags` say.
    `reason`: what its models' requests are to be counted under."""
    urls = [word for engine in engines for word in ("--engine", engine.url)]
    return ServingProgram(["serve", *urls, *flags], log, reason)


@contextmanager
def serve_in_two_legs(
    prefill: RealEngine, decode: RealEngine, log: Path, *flags: str
) -> Iterator[ServingProgram]:
    """`inferway serve` that has every prompt computed by the one engine, and answered by the
    other. It is entered when both have told all of themselves: vLLM's first /server_info takes
    seconds."""
    words = ["serve", "--scheduling", str(HERE / "two_legs.yaml"), *flags]
    for engine, role in ((prefill, "prefill"), (decode, "decode")):
        words += ["--engine", f"{engine.url},role={role}"]

    with ServingProgram(words, log, "kv-aware") as program:
        wait_until_known_to_hand_over(program.url)
        yield program


def wait_until_known_to_hand_over(gateway: str) -> None:
    def known() -> bool:
        told = client.get(f"{gateway}/admin/engines").json["engines"]
        return any((engine["kv_transfer"] or {}).get("hands_to") for engine in told)

    wait_until(known, "the gateway knows that an engine hands its blocks to another")


def without_replay(engine: RealEngine) -> str:
    """For --engine: what a gateway has missed of it is lost."""
    return f"{engine.url},events=tcp://127.0.0.1:{engine.ports.events}"


class ServingProgram(Program):
    """Is entered when the gateway knows the models, block sizes and event streams, and has
    compared how the engines render."""

    def __init__(self, arguments: Sequence[str], log: Path, reason: str) -> None:
        super().__init__(arguments, log)
        self._reason = reason

    def __enter__(self) -> ServingProgram:
        super().__enter__()
        wait_until(self._knows_all, "the gateway knows its engines", self._report)
        return self

    def _knows_all(self) -> bool:
        report = client.get(f"{self.url}/ready").json
        models = [model["reason"] for model in report["models"].values()]
        engines = report["engines"]
        proofs = [list(engine["probes"].values()) for engine in engines]
        told = all(proof and proof[0]["state"] != "unproven" for proof in proofs)
        there = all(engine["healthy"] and engine["streams"] for engine in engines)
        return told and there and set(models) == {self._reason}

    def _report(self) -> str:
        return client.get(f"{self.url}/ready").raw.decode()
