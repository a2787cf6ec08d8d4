"""Somebody who types the commands of a document into terminals, one block after the other.

A block of `sh` or `python` is run; one of `text` is what the block before it prints. A block that
starts `inferway simulate`, `serve` or `epp` gets a terminal of its own, in which it goes on, and
`# Ctrl-C in the terminal of port N` ends it. Documents write fixed ports; each is replaced by a
free one wherever it stands, and only here. What cannot be run on any machine is listed, with the
reason.
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
DEFAULT_PORT = "8080"  # where a command has no --port
FIGURE = re.compile(r"\d+(?:\.\d+)?")
VARIABLES = re.compile(r"(?:\w+=\S+ )*")  # that stand before a command
# How a block that is not run begins -> why not.
NOT_RUN = {
    "vllm serve": "needs vLLM; simulated engines stand for it, and tests/engines reads its flags",
    "dotvllm": "needs vLLM; tests/engines/test_structured.py starts it",
    "pip install nixl": "needs two machines with GPUs",
    "pip install": "needs a package index; tests/wheel/test_recipes.py runs it",
    "make ": "tests/test_makefile.py, and the tests that it runs",
    "kubectl ": "needs a cluster",
    "helm ": "needs a cluster; tests/deploy renders the chart",
    "docker ": "needs a container engine",
}
# The same of single blocks, by their document.
NOT_RUN_HERE = {
    ("bench/README.md", "inferway bench"): "takes minutes; tests/wheel runs each command",
    ("docs/compare.md", "inferway bench"): "takes ten minutes; bench/tests/loading/test_compare.py",
    ("docs/configuration.md", "curl -d "): "tests/integration/test_silent_engines.py asks the same",
    ("docs/configuration.md", "git clone"): "needs a network, and takes half an hour",
    (
        "docs/deploy.md",
        "sudo ",
    ): "needs root and systemd; tests/wheel/test_recipes.py replaces both",
    ("docs/endpoint-picker.md", "inferway simulate"): "needs Envoy; tests/envoy starts it so",
    ("docs/endpoint-picker.md", "curl"): "needs Envoy; tests/envoy asks it so",
    ("docs/flow-control.md", "curl"): "needs names of the reader's; guides/engine-dies.md drains",
    ("docs/load.md", "inferway bench"): "takes nine minutes and more; tests/wheel runs a short one",
    ("docs/guides/explain.md", "inferway explain --missed --text"): "needs an admin key; "
    "tests/integration/test_record_pages.py has one",
    ("docs/guides/what-if.md", "inferway serve"): "writes to /var/lib",
    ("docs/guides/what-if.md", "inferway what-if"): "needs recorded hours; bench/tests/whatif",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document; `place` counts from 0."""

    place: int
    language: str
    text: str
    document: str  # its path in the checkout

    @cached_property
    def is_server(self) -> bool:
        is_one = self.language == "sh" and SERVER.match(self.text) is not None
        return is_one and self.why_not is None

    @cached_property
    def is_run(self) -> bool:
        """To its end, so that it prints something."""
        is_command = self.language in ("sh", "python") and self.why_not is None
        return is_command and not self.is_server and self.ends is None

    @cached_property
    def why_not(self) -> str | None:
        """Why nobody runs it; None if somebody does."""
        command = VARIABLES.sub("", self.text, count=1)
        here = {begin: why for (doc, begin), why in NOT_RUN_HERE.items() if doc == self.document}
        found = [why for begin, why in (here | NOT_RUN).items() if command.startswith(begin)]
        return found[0] if found else None

    @cached_property
    def ends(self) -> str | None:
        """The port of the server that it ends."""
        match = CTRL_C.match(self.text.strip())
        return match[1] if match else None

    @cached_property
    def port(self) -> str:
        """On which a server listens, as written."""
        return self.option("--port") if "--port " in self.text else DEFAULT_PORT

    def option(self, name: str) -> str:
        """What the command is given for `name`."""
        words = shlex.split(self.text)
        return words[words.index(name) + 1]


def blocks(document: Path) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.M | re.S)
    name = document.relative_to(ROOT).as_posix()
    return [Block(place, language, text, name) for place, (language, text) in enumerate(found)]


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
        written = dict.fromkeys([*PORT.findall(text), DEFAULT_PORT])
        return {each: str(free_port()) for each in written}

    def type_all(self) -> None:
        for block in self.blocks:
            self.type(block)

    def type(self, block: Block) -> None:
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
            port = self.ports.setdefault(match[1], str(free_port()))
            return match[0].removesuffix(match[1]) + port

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
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.stack.callback(self._end, process)
        self._servers[self.ports[block.port]] = process
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
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        return self._as_written(done.stdout)

    def _environment(self) -> dict[str, str]:
        """The tester's own, but for a home that is empty, and the port of servers without one."""
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.directory),
            "INFERWAY_PORT": self.ports[DEFAULT_PORT],
        }
