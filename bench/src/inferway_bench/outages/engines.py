"""The simulated engines of a trial, and what happens to the first of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import msgspec

from inferway_bench.hosts import OwnHost, own_host
from inferway_bench.processes import BenchError, get, request, running, wait_until
from inferway_bench.routers import EngineAddress
from inferway_sim.prepare import prepare_smollm2

MODEL = "smollm2"  # as clients call it
SLOWER = 30

TroubleKind = Literal["kill -9", "freeze", "blackhole", "stalled core", "30 times slower"]
TROUBLES: tuple[TroubleKind, ...] = get_args(TroubleKind)
# What each is, in words.
ABOUT: dict[TroubleKind, str] = {
    "kill -9": "the process ends, and its connections with it",
    "freeze": "the process stands still (SIGSTOP), and its connections stay open",
    "blackhole": "what the host sends is dropped, and nothing is reset",
    "stalled core": "the API answers, and nothing is computed",
    "30 times slower": "each token and each prompt takes 30 times as long",
}


class TroubledEngine(msgspec.Struct, frozen=True):
    """What the engines of a trial are like."""

    engines: int = 3
    prefill_us_per_token: float = 300.0
    inter_token_ms: float = 20.0

    @property
    def about(self) -> str:
        """The engines in words."""
        return (
            f"{self.engines} simulated engines; {self.prefill_us_per_token:g} µs for each prompt"
            f" token that is not cached, {self.inter_token_ms:g} ms for each token of an answer"
        )

    def flags(self) -> list[str]:
        """Return the flags of `inferway simulate`."""
        return [
            *("--mode", "recite", "--prefill-time-per-token", f"{self.prefill_us_per_token:g}us"),
            *("--inter-token-latency", f"{self.inter_token_ms:g}ms"),
        ]


@dataclass(frozen=True, slots=True)
class TroubledFleet:
    """Engines that run; the first is the one that something happens to."""

    engines: list[EngineAddress]
    process: subprocess.Popen[bytes]  # of the first
    host: OwnHost | None  # of the first, if it has one of its own

    def begin(self, kind: TroubleKind) -> None:
        """Have it happen, to the end. Raises BenchError if it cannot be made."""
        match kind:
            case "kill -9":
                self.process.kill()
            case "freeze":
                self.process.send_signal(signal.SIGSTOP)
            case "blackhole":
                assert self.host is not None
                self.host.cut_off("answers dropped")
            case "stalled core":
                self._disturb({"stalled": True})
            case "30 times slower":
                self._disturb({"slower": SLOWER})

    def _disturb(self, disturbance: dict[str, object]) -> None:
        request(f"{self.engines[0].url}/simulate", msgspec.json.encode(disturbance))


@contextmanager
def troubled_fleet(
    spec: TroubledEngine, kind: TroubleKind, directory: Path, number: int
) -> Iterator[TroubledFleet]:
    """Start engines for one kind of trouble, the `number` of the trial, 0 to 9. Raises BenchError
    when one does not start."""
    with ExitStack() as stack:
        host = stack.enter_context(own_host(number)) if kind == "blackhole" else None
        started = [
            _start(stack, spec, directory / f"engine-{each}.log", None if each else host)
            for each in range(spec.engines)
        ]
        for process, log in started:
            wait_until(partial(_listens, log), "a simulated engine", process, log)
        first = started[0][0]
        stack.callback(first.kill)  # whatever state it is in
        addresses = [_address(_url_in(log)) for _, log in started]
        yield TroubledFleet(addresses, first, host)


def _start(
    stack: ExitStack, spec: TroubledEngine, log: Path, host: OwnHost | None
) -> tuple[subprocess.Popen[bytes], Path]:
    executable = str(Path(sys.executable).with_name("inferway"))
    command = [executable, "simulate", "--port", "0", "--model", str(prepare_smollm2())]
    command += ["--served-model-name", MODEL, "--enable-scale-out", *spec.flags()]
    if host is not None:
        command = host.command([*command, "--host", host.address])
    return stack.enter_context(running(command, log)), log


def _listens(log: Path) -> bool:
    return bool(_url_in(log))


def _url_in(log: Path) -> str:
    """Empty until the engine listens."""
    found = re.search(r"simulated engine (http://\S+) serves", log.read_text())
    return found[1] if found else ""


def _address(url: str) -> EngineAddress:
    source = msgspec.json.decode(get(f"{url}/kv_event_sources"))["0"]
    host = url.removeprefix("http://").rpartition(":")[0]
    return EngineAddress(url, source["endpoint"].replace("*", host))


def kinds_of(names: tuple[str, ...]) -> list[TroubleKind]:
    """Return the kinds of these names, all if there are none. Raises BenchError."""
    for name in names:
        if name not in TROUBLES:
            raise BenchError(f"--trouble {name!r}: there are {', '.join(TROUBLES)}")
    return [kind for kind in TROUBLES if not names or kind in names]
