"""Engines behind a name."""

from __future__ import annotations

import pytest
from tests.fleet.discovery.told import Told

from inferway.errors import ConfigError
from inferway.fleet.discovery.sources import DnsName


class Names:
    """What the name stands for, changed by a test; None: it cannot be resolved."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: list[str] | None = list(addresses)

    async def __call__(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("engines.local", 8000)
        if self.addresses is None:
            raise OSError("temporary failure in name resolution")
        return self.addresses


async def test_every_address_is_an_engine() -> None:
    told = Told()

    await DnsName("http://engines.local:8000", Names("10.0.0.1", "fd00::1")).look(told)

    assert told.urls == ["10.0.0.1:8000", "[fd00::1]:8000"]


async def test_only_changes_are_told() -> None:
    told, names = Told(), Names("10.0.0.1")
    source = DnsName("http://engines.local:8000", names)

    await source.look(told)
    await source.look(told)
    assert len(told.lists) == 1

    names.addresses = ["10.0.0.2"]
    await source.look(told)
    assert told.urls == ["10.0.0.2:8000"]


@pytest.mark.parametrize("answer", [None, []])
async def test_a_name_without_an_answer_leaves_the_engines(answer: list[str] | None) -> None:
    told, names = Told(), Names("10.0.0.1")
    source = DnsName("http://engines.local:8000", names)
    await source.look(told)

    names.addresses = answer
    await source.look(told)

    assert len(told.lists) == 1


@pytest.mark.parametrize("url", ["engines.local:8000", "http://engines.local", "tcp://e:1"])
def test_a_url_without_a_port_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected http://NAME:PORT"):
        DnsName(url)
