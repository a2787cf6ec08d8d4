"""Every command of README.md runs as it stands, in its order, and prints what README.md shows.

Not run here: `vllm serve` (simulated engines on the same ports stand for it; its flags are read by
vLLM's own parser in tests/fleet), `pip install inferway` (a test of the wheel does it), and `make`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.integration.program import INFERWAY, Program

ROOT = Path(__file__).parents[1]
SERVERS = {
    "inferway simulate": r"simulated engine http://127\.0\.0\.1:(\d+)",
    "inferway serve": r"listening on http://127\.0\.0\.1:(\d+)",
}
NOT_RUN = ("vllm serve", "pip install", "make")
FIGURE = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of README.md."""

    written_in: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def command(self) -> str:
        """Its first two words."""
        return " ".join(self.words[:2])


def blocks() -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    return [Block(written_in, text) for written_in, text in found]


@dataclass(slots=True)
class Reader:
    """Somebody who types README.md into a terminal of a machine whose ports are taken: servers
    listen where there is room, and whatever is typed after that asks there."""

    directory: Path
    stack: ExitStack
    ports: dict[str, str] = field(default_factory=dict)  # as written -> as it is
    printed: dict[Block, str] = field(default_factory=dict)

    def type(self, block: Block) -> None:
        server = next((name for name in SERVERS if block.command == name), None)
        if server is not None:
            self._start(block, SERVERS[server])
        elif block.written_in == "python":
            self._run(block, sys.executable, "-W", "error", "-c")
        elif block.written_in == "sh" and not block.text.startswith(NOT_RUN):
            self._run(block, "bash", "-euo", "pipefail", "-c")

    def here(self, text: str) -> str:
        for written, port in self.ports.items():
            text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{port}")
        return text

    def as_written(self, text: str) -> str:
        for written, port in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{written}")
        return text

    def _start(self, block: Block, says: str) -> None:
        arguments = shlex.split(self.here(block.text))[1:]
        at = arguments.index("--port") + 1
        written, arguments[at] = arguments[at], "0"
        program = Program(*arguments)
        self.stack.enter_context(program.process)
        self.stack.callback(program.process.terminate)
        self.ports[written] = program.read_until(says)

    def _run(self, block: Block, *interpreter: str) -> None:
        path = f"{Path(INFERWAY).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [*interpreter, self.here(block.text)],
            cwd=self.directory,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        self.printed[block] = self.as_written(done.stdout)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with ExitStack() as stack:
        reader = Reader(tmp_path_factory.mktemp("readme"), stack)
        for block in blocks():
            reader.type(block)
        yield reader


def question(printed: dict[Block, str]) -> str:
    (text,) = [text for block, text in printed.items() if "ask 'What" in block.text]
    return text


def test_each_block_is_a_command_or_what_one_prints() -> None:
    assert {block.written_in for block in blocks()} == {"sh", "text", "python"}


@pytest.mark.tools
def test_every_command_runs(reader: Reader) -> None:
    typed = [block for block in blocks() if block.written_in != "text"]
    servers = [block for block in typed if block.command in SERVERS]
    elsewhere = [block for block in typed if block.text.startswith(NOT_RUN)]

    assert len(reader.printed) == len(typed) - len(servers) - len(elsewhere)
    assert len(reader.ports) == len(servers) == 3


@pytest.mark.tools
def test_what_is_shown_is_printed_but_for_its_figures(reader: Reader) -> None:
    (shown,) = [block.text for block in blocks() if block.written_in == "text"]

    assert FIGURE.sub("N", question(reader.printed)) == FIGURE.sub("N", shown)


@pytest.mark.tools
def test_the_long_prompt_hits_the_second_time_as_is_shown(reader: Reader) -> None:
    (shown,) = [block.text for block in blocks() if block.written_in == "text"]

    for text in (shown, question(reader.printed)):
        engines = re.findall(r"x-inferway-engine: (\S+)", text)
        matched = [int(n) for n in re.findall(r"matched-blocks: (\d+)", text)]
        first, second = (float(seconds) for seconds in re.findall(r"seconds: (\S+)", text))

        assert engines in (["127.0.0.1:8101"] * 2, ["127.0.0.1:8102"] * 2)
        assert matched == [int(n) for n in re.findall(r"matched-blocks: (\d+)", shown)]
        assert second < first / 2


@pytest.mark.tools
def test_the_figures_of_its_tokens_are_those_that_are_counted(reader: Reader) -> None:
    answer = json.loads((reader.directory / "answer.json").read_text())

    assert 550 <= answer["usage"]["prompt_tokens"] <= 650
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 550


def test_each_vllm_engine_has_a_simulated_one_on_its_port() -> None:
    def ports(command: str) -> list[str]:
        found = [block.words for block in blocks() if block.command == command]
        return [words[words.index("--port") + 1] for words in found]

    assert ports("vllm serve") == ports("inferway simulate") != []
