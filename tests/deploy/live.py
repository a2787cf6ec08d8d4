"""A gateway in front of simulated engines, and a real Prometheus that scrapes them all and has our
alert rules: programs, on ports that were free."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml
from tests.fork_server import INFERWAY
from tests.integration.program import Program

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy/grafana/inferway.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"

# Slow enough to be seen, fast enough for a laptop.
ENGINE = (
    *(
        "simulate",
        "--port",
        "0",
        "--served-model-name",
        "smollm2",
        "--kv-cache-size",
        "2048",
        "--max-num-seqs",
        "8",
    ),
    *("--prefill-overhead", "20ms", "--prefill-time-per-token", "0.3ms"),
    *("--inter-token-latency", "12ms", "--time-factor-under-load", "2"),
)
_ALL_OF_IT = ("--warm-up", "0")
_SCRAPE = "1s"
_LISTENS = r"listening on (http://\S+)"
_ENGINE_LISTENS = r"simulated engine (http://\S+)"


class Series(NamedTuple):
    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]  # (second, value)


@dataclass(frozen=True)
class Live:
    """All that runs."""

    engines: Sequence[Program]
    engine_urls: Sequence[str]
    gateway_url: str
    prometheus_url: str

    @contextmanager
    def load(self, *options: str) -> Iterator[None]:
        """Chats through the gateway, meanwhile."""
        command = [str(INFERWAY), "bench", "load", self.gateway_url, *_ALL_OF_IT, *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
        try:
            yield
        finally:
            _end(process)

    def query(self, expression: str) -> list[Any]:
        """What Prometheus answers for now. HTTPError if it cannot read the expression."""
        result: list[Any] = self.ask("query", query=expression)["result"]
        return result

    def between(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """The same for a stretch of time, in seconds since 1970."""
        found = self.ask("query_range", query=expression, start=start, end=end, step=step)
        return [
            Series(one["metric"], [(float(t), float(v)) for t, v in one["values"]])
            for one in found["result"]
        ]

    def ask(self, what: str, **parameters: object) -> Any:
        url = f"{self.prometheus_url}/api/v1/{what}?{urlencode(parameters)}"
        with urlopen(url, timeout=30) as response:
            return json.load(response)["data"]


@contextmanager
def live(directory: Path, engines: int = 2, serve: Sequence[str] = ()) -> Iterator[Live]:
    """`serve`: more arguments of `inferway serve`."""
    with ExitStack() as stack:

        def start(*arguments: str) -> Program:
            program = Program(*arguments)
            stack.callback(program.kill)
            return program

        running = [start(*ENGINE, "--seed", str(number)) for number in range(engines)]
        urls = [program.read_until(_ENGINE_LISTENS) for program in running]
        gateway = start("serve", *urls, "--port", "0", "--access-log", "none", *serve)
        url = gateway.read_until(_LISTENS)
        prometheus = _prometheus(directory, url, urls)
        stack.callback(_end, prometheus)
        yield Live(running, urls, url, _address(prometheus))


def _prometheus(directory: Path, gateway: str, engines: Sequence[str]) -> subprocess.Popen[str]:
    def scraped(job: str, urls: Sequence[str]) -> dict[str, object]:
        targets = [url.removeprefix("http://") for url in urls]
        return {"job_name": job, "static_configs": [{"targets": targets}]}

    config = {
        "global": {"scrape_interval": _SCRAPE, "evaluation_interval": _SCRAPE},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [scraped("inferway", [gateway]), scraped("vllm", engines)],
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return subprocess.Popen(
        [
            *("prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"),
            "--web.listen-address=127.0.0.1:0",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )


def _address(prometheus: subprocess.Popen[str]) -> str:
    """Once it answers."""
    assert prometheus.stderr is not None
    said = ""
    for line in prometheus.stderr:
        said += line
        listens = re.search(r'"Listening on" address=(\S+)', said)
        if listens and "Server is ready" in said:
            return f"http://{listens[1]}"
    raise AssertionError(f"prometheus ended:\n{said}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def panels() -> list[dict[str, Any]]:
    """Those of the dashboard, but its rows."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def filled(expression: str, rate_interval: str) -> str:
    """With all jobs and models for Grafana's variables."""
    for name, value in (("$__rate_interval", rate_interval), ("$job", ".*"), ("$model", ".*")):
        expression = expression.replace(name, value)
    return expression


def wait_until(condition: Any, seconds: float = 60) -> None:
    """Asks again and again; AssertionError if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.2)
