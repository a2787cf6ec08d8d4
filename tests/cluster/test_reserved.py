"""One gateway has a port, with as many processes as it likes."""

from __future__ import annotations

import socket

import pytest

from inferway.cluster.hub import ReservedPort
from inferway.errors import ConfigError


def listening(port: int, *, shares: bool) -> socket.socket:
    found = socket.socket()
    if shares:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    found.listen()
    return found


def test_workers_may_listen_on_a_port_that_is_reserved() -> None:
    reserved = ReservedPort("127.0.0.1", 0)
    with listening(reserved.port, shares=True), listening(reserved.port, shares=True):
        pass
    reserved.close()


def test_another_program_has_the_port() -> None:
    with listening(0, shares=False) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on "):
            ReservedPort("127.0.0.1", port)


def test_another_gateway_with_workers_has_the_port() -> None:
    first = ReservedPort("127.0.0.1", 0)

    with pytest.raises(ConfigError, match="is in use"):
        ReservedPort("127.0.0.1", first.port)

    first.close()
    ReservedPort("127.0.0.1", first.port).close()


def test_workers_without_a_hub_do_not_keep_the_next_one_from_the_port() -> None:
    first = ReservedPort("127.0.0.1", 0)
    with listening(first.port, shares=True):
        first.close()  # as when it is killed

        ReservedPort("127.0.0.1", first.port).close()


def test_a_host_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.host\.invalid, port 1234"):
        ReservedPort("no.such.host.invalid", 1234)
