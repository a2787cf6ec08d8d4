"""Somebody who types the commands of a document into terminals, one block after the other.

A block of `sh` or `python` is run; one of `text` is what the block before it prints. A block that
starts `inferway simulate`, `serve` or `epp` gets a terminal of its own, in which it goes on, and
`# Ctrl-C in the terminal of port N` ends it. Documents write fixed ports; each is replaced by a
free one wherever it stands, and only here.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from inferway_bench.processes import free_port

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
SAYS = re.compile(r"simulated engine http://|listening on http")  # a server that is there
SERVER = re.compile(r"^(?:\w+=\S+ )*inferway (?:simulate|serve|epp)\b")
CTRL_C = re.compile(r"^# Ctrl-C in the terminal of port (\d+)$")
PORT = re.compile(
    r"(?:--(?:admin-)?port |127\.0\.0\.1:|tcp://\*:|the terminal of port )(\d{4,5})\b"
)
FIGURE = re.compile(r"\d+(?:\.\d+)?")
# Simulated engines on the same ports stand for vLLM; its flags are read by its own parser in
# tests/engines. A test of the wheel installs it. `make demo` and `make test` are tested elsewhere.
NOT_RUN = ("vllm serve", "pip install", "make ", "kubectl ", "helm ", "docker ", "podman ")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document; `place` counts from 0."""

    place: int
    language: str
    text: str

    @cached_property
    def is_server(self) -> bool:
        return self.language == "sh" and SERVER.match(self.text) is not None

    @cached_property
    def is_run(self) -> bool:
        """To its end, so that it prints something."""
        is_command = self.language in ("sh", "python") and not self.text.startswith(NOT_RUN)
        return is_command and not self.is_server and self.ends is None

    @cached_property
    def ends(self) -> str | None:
        """The port of the server that it ends."""
        match = CTRL_C.match(self.text.strip())
        return match[1] if match else None

    def option(self, name: str) -> str:
        """What the command is given for `name`."""
        words = shlex.split(self.text)
        return words[words.index(name) + 1]


def blocks(document: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.M | re.S)
    return [Block(place, language, text) for place, (language, text) in enumerate(found)]


def shape(text: str) -> str:
    """Without its figures."""
    return FIGURE.sub("N", text)


@dataclass
class Reader:
    """Types a document in `directory`; `stack` ends what it has started."""

    document: Path
    directory: Path
    stack: ExitStack
    printed: dict[Block, str] = field(default_factory=dict)
    _servers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> list[Block]:
        return blocks(self.document)

    @cached_property
    def ports(self) -> dict[str, str]:
        """As written -> as it is."""
        text = "\n".join(block.text for block in self.blocks)
        return {written: str(free_port()) for written in dict.fromkeys(PORT.findall(text))}

    def type_all(self) -> None:
        for block in self.blocks:
            if block.is_server:
                self._start(block)
            elif block.ends is not None:
                self._end(self._servers.pop(self.ports[block.ends]))
            elif block.is_run:
                self.printed[block] = self._run(block)

    def shown(self) -> list[tuple[str, str]]:
        """Each block of `text`, and what the block before it has printed."""
        pairs = zip(self.blocks, self.blocks[1:], strict=False)
        return [(b.text, self.printed[a]) for a, b in pairs if b.language == "text"]

    def _here(self, text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            return match[0].removesuffix(match[1]) + self.ports[match[1]]

        return PORT.sub(replaced, text)

    def _as_written(self, text: str) -> str:
        for written, port in self.ports.items():
            text = re.sub(rf"(?<=:){port}\b", written, text)
        return text

    def _start(self, block: Block) -> None:
        text = self._here(block.text)
        process = subprocess.Popen(
            ["bash", "-c", text],
            cwd=self.directory,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.stack.callback(self._end, process)
        self._servers[self.ports[block.option("--port")]] = process
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if SAYS.search(line):
                return
        raise AssertionError(f"{block.text}ended:\n{output}")

    def _end(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        if process.stdout.closed:
            return  # by the document itself
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        with process:
            process.stdout.read()

    def _run(self, block: Block) -> str:
        interpreter = {
            "sh": ["bash", "-euo", "pipefail", "-c"],
            "python": [sys.executable, "-W", "error", "-c"],
        }[block.language]
        done = subprocess.run(
            [*interpreter, self._here(block.text)],
            cwd=self.directory,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        return self._as_written(done.stdout)


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
