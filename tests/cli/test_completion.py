"""`inferway completion`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from inferway.cli.main import main

BIN = str(Path(sys.executable).parent)


def script(shell: str) -> str:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_for_our_command(shell: str) -> None:
    assert "_INFERWAY_COMPLETE" in script(shell)


def test_another_shell_is_answered_with_those_that_are_known() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"])

    assert result.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.output


def completed(line: str) -> list[str]:
    """What bash offers at the end of `line`, by the script."""
    bash = shutil.which("bash")
    assert bash is not None
    words = line.split(" ")
    ask = (
        f"{script('bash')}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}\n"
        "_inferway_completion inferway\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "--norc", "-c", ask], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.split()


def test_bash_completes_commands() -> None:
    assert completed("inferway se") == ["serve"]


def test_bash_completes_flags_and_their_values() -> None:
    assert completed("inferway serve --poli") == ["--policy"]
    assert completed("inferway serve --policy round") == ["round-robin"]
