"""The engines of a Ray Serve deployment: what its replicas have announced.

Ray's own REST API names replicas, and not where they listen. So a program that joins the cluster
(`inferway_ray.watch`, of the extra `ray`) writes the engines as lines, and is started anew when it
ends.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import msgspec

from inferway.config import EngineSettings, check_engines
from inferway.errors import ConfigError
from inferway.fleet.discovery.sources import Tell
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.discovery")

AGAIN_SECONDS, MOST_SECONDS = 1.0, 30.0  # until a program that has ended is started anew
MAX_LINE_BYTES = 16 * 1024 * 1024
MAX_SHOWN = 500  # characters of what it wrote on standard error

_NAME = re.compile(r"[^/\s]+/[^/\s]+")


def watching(deployment: str) -> Sequence[str]:
    """Return the command that writes the engines of APP/DEPLOYMENT as lines."""
    return [sys.executable, "-m", "inferway_ray.watch", deployment]


@dataclass(slots=True)
class RayReplicas:
    """An EngineSource. `deployment`: APP/DEPLOYMENT. A cluster that cannot be reached, or has no
    such deployment now, leaves the engines as they were; one whose last replica has gone has
    none."""

    deployment: str
    command: Callable[[str], Sequence[str]] = watching
    sleep: Callable[[float], object] = asyncio.sleep
    synced: bool = False
    _warned: str = field(default="", init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if not _NAME.fullmatch(self.deployment):
            raise ConfigError(f"--engines-ray {self.deployment!r}: expected APP/DEPLOYMENT")
        if self.command is watching and find_spec("ray") is None:
            raise ConfigError(
                f"--engines-ray {self.deployment!r}: Ray is not installed here; pip install"
                " 'inferway[ray]'"
            )

    async def run(self, tell: Tell) -> None:
        pause = AGAIN_SECONDS
        while True:
            was_told = await self._follow(tell)
            pause = AGAIN_SECONDS if was_told else min(pause * 2, MOST_SECONDS)
            await self.sleep(pause)  # type: ignore[misc]

    async def _follow(self, tell: Tell) -> bool:
        """Tell what one run of the program writes, until it ends. Return whether it wrote."""
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(
            *self.command(self.deployment),
            stdin=pipe,  # it ends when we do
            stdout=pipe,
            stderr=pipe,
            limit=MAX_LINE_BYTES,
        )
        assert program.stdout is not None
        assert program.stderr is not None
        said = asyncio.ensure_future(self._said(program.stderr))
        was_told = False
        try:
            while line := await program.stdout.readline():
                was_told = self._told(line, tell) or was_told
            self._warn(f"is not followed: {await said or 'its watch has ended'}")
        except ValueError:  # a line over the limit
            self._warn(f"is not followed: a line of more than {MAX_LINE_BYTES} bytes")
        finally:
            said.cancel()
            if program.returncode is None:
                program.kill()
            await program.wait()
        return was_told

    async def _said(self, errors: asyncio.StreamReader) -> str:
        """Log what it says, line by line. Return the last."""
        last = ""
        while line := await errors.readline():
            last = line.decode(errors="replace").strip()[:MAX_SHOWN]
            if last.startswith("replica "):  # of one of them; the rest are there
                log.warning("deployment %s of Ray: %s", self.deployment, last)
        return last

    def _told(self, line: bytes, tell: Tell) -> bool:
        try:
            engines = msgspec.json.decode(line, type=list[EngineSettings])
            check_engines(engines)
        except (*UNREADABLE, ConfigError) as e:
            self._warn(f"cannot be used: {e}")
            return False
        self._warned, self.synced = "", True
        names = ", ".join(engine.label for engine in engines) or "none"
        log.info("the engines of Ray's deployment %s are now: %s", self.deployment, names)
        tell(engines)
        return True

    def _warn(self, fault: str) -> None:
        if fault != self._warned:
            log.warning(
                "Ray's deployment %s %s; its engines stay as they were", self.deployment, fault
            )
        self._warned = fault
