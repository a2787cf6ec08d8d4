from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferway_structured.command import served


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("--model M --host 0.0.0.0 --port 8000", "serve M --host 0.0.0.0 --port 8000"),
        ("--port 8000 --model=M", "serve M --port 8000"),
        ("--help", "serve --help"),
        ("", "serve"),
        ("serve M --port 1", "serve M --port 1"),
        ("bench latency --model M", "bench latency --model M"),
        ("--version", "--version"),
    ],
)
def test_dotvllm_serves_unless_another_command_comes_first(given: str, wanted: str) -> None:
    assert served(given.split()) == wanted.split()


@pytest.mark.parametrize("command", ["inferway vllm serve M", "dotvllm --model M"])
def test_without_vllm_it_says_how_to_install_it(command: str) -> None:
    name, *arguments = command.split()
    script = Path(sys.executable).parent / name

    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "vLLM is not installed here" in done.stderr
    assert "pip install 'inferway-structured[vllm]'" in done.stderr


@pytest.mark.parametrize("command", ["inferway vllm --help", "inferway vllm -h", "dotvllm --help"])
def test_without_vllm_its_help_says_what_it_is_and_how_to_install_it(
    command: str, tmp_path: Path
) -> None:
    name, *arguments = command.split()
    script = Path(sys.executable).parent / name

    done = subprocess.run(
        [script, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert done.returncode == 0
    assert "inferway vllm serve MODEL" in done.stdout
    assert "pip install 'inferway-structured[vllm]'" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("flags", "before", "wanted"),
    [
        ("", None, "required"),
        ("--allow-stock", None, "1"),
        ("", "1", "required"),
        ("", "0", "0"),
    ],
)
def test_our_structured_output_is_required_unless_said_otherwise(
    flags: str, before: str | None, wanted: str, tmp_path: Path
) -> None:
    """A vLLM of one line, which prints its arguments."""
    main = tmp_path / "vllm" / "entrypoints" / "cli" / "main.py"
    main.parent.mkdir(parents=True)
    main.write_text(
        "import os, sys\ndef main(): print(os.environ['INFERWAY_STRUCTURED'], sys.argv[1:])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    if before is not None:
        environment["INFERWAY_STRUCTURED"] = before
    script = Path(sys.executable).parent / "dotvllm"

    done = subprocess.run(
        [script, "--model", "M", *flags.split()],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )

    assert done.stdout == f"{wanted} ['serve', 'M']\n"
