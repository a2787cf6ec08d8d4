"""A real Envoy, on free ports, with the configuration that we ship."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

ROOT = Path(__file__).parents[2]
STANDALONE = ROOT / "deploy" / "standalone"

Config = dict[str, Any]
Change = Callable[[Config], None]


def shipped(name: str = "envoy.yaml") -> Config:
    config: Config = yaml.safe_load((STANDALONE / name).read_text())
    return config


def manager(config: Config) -> Config:
    """What manages clients' connections."""
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    found: Config = chain["filters"][0]["typed_config"]
    return found


def filters(config: Config) -> list[Config]:
    found: list[Config] = manager(config)["http_filters"]
    return found


def picker_filter(config: Config) -> Config:
    """The ext_proc filter's own configuration."""
    return next(f["typed_config"] for f in filters(config) if f["name"].endswith("ext_proc"))


def cluster(config: Config, name: str) -> Config:
    found: Config = next(c for c in config["static_resources"]["clusters"] if c["name"] == name)
    return found


class Envoy:
    """Runs until the end of the block. `url` is where clients ask."""

    def __init__(
        self, picker_port: int, change: Change = lambda _: None, name: str = "envoy.yaml"
    ) -> None:
        config = shipped(name)
        config["admin"]["address"]["socket_address"]["port_value"] = 0
        listener = config["static_resources"]["listeners"][0]
        listener["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": 0}
        endpoint = cluster(config, "picker")["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
        endpoint["endpoint"]["address"]["socket_address"]["port_value"] = picker_port
        change(config)
        self._config = config

    async def __aenter__(self) -> Envoy:
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        (directory / "envoy.yaml").write_text(yaml.safe_dump(self._config))
        binary = subprocess.run(
            [ROOT / "scripts" / "install_envoy.sh"], check=True, capture_output=True, text=True
        ).stdout.strip()
        self._log = (directory / "log").open("wb")
        self._process = subprocess.Popen(
            [
                *(binary, "-c", str(directory / "envoy.yaml"), "--concurrency", "1"),
                *("--disable-hot-restart", "--log-level", "warning"),
                *("--admin-address-path", str(directory / "admin")),
            ],
            stdout=self._log,
            stderr=self._log,
        )
        self.admin = "http://" + await self._written(directory / "admin")
        async with aiohttp.ClientSession() as http:
            await self._until_live(http)
            async with http.get(self.admin + "/listeners?format=json") as response:
                listeners = await response.json(content_type=None)
        address = listeners["listener_statuses"][0]["local_address"]["socket_address"]
        self.url = f"http://127.0.0.1:{address['port_value']}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await asyncio.to_thread(self._process.wait)
        self._log.close()
        self._directory.cleanup()

    async def _written(self, path: Path) -> str:
        while not path.exists() or not path.read_text():
            self._check()
            await asyncio.sleep(0.01)
        return path.read_text().strip()

    async def _until_live(self, http: aiohttp.ClientSession) -> None:
        while True:
            self._check()
            async with http.get(self.admin + "/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.01)

    def _check(self) -> None:
        if self._process.poll() is not None:
            log = (Path(self._directory.name) / "log").read_text()
            raise RuntimeError(f"envoy has ended ({self._process.returncode}):\n{log}")
