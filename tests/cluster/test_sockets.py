"""Gateways find and hear each other over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count

import pytest
from tests.cluster.gateways import NAMES, Gateway
from tests.cluster.redis_server import free_port, until

from inferway.cluster.bus.replicas import Replicas
from inferway.cluster.bus.sockets import PeerSockets
from inferway.errors import ConfigError
from inferway.fleet.zmtp import COMMAND, GREETING, frame, ready

LOOPBACK = "127.0.0.1"
_numbers = count(1)


def replicas(gateway: Gateway, sockets: PeerSockets) -> Replicas:
    made = Replicas(gateway.outbox, gateway.inbox, gateway.table, sockets, lambda: NAMES)
    gateway.sharing.tell = lambda event: made.tell(0, event)
    return made


def at(replicas: Replicas) -> dict[str, str]:
    return {each["address"]: each["state"] for each in replicas.report()["peers"]}


async def test_gateways_hear_all_others_and_not_themselves() -> None:
    ports = [free_port() for _ in range(3)]
    addresses = [f"{LOOPBACK}:{port}" for port in ports]
    gateways = [Gateway(next(_numbers)) for _ in ports]
    all_of_them = [
        replicas(gateway, PeerSockets(addresses, LOOPBACK, port))
        for gateway, port in zip(gateways, ports, strict=True)
    ]
    for each in all_of_them:
        await each.open()
    try:
        for own, each in zip(addresses, all_of_them, strict=True):
            others = {address: "heard" for address in addresses if address != own}
            await until(lambda each=each, others=others: at(each) == others)  # type: ignore[misc]

        gateways[0].table.book(gateways[0].endpoints["b"], 10)
        for gateway in gateways:
            await until(
                lambda gateway=gateway: (  # type: ignore[misc]
                    gateway.table.candidates("m").in_flight.tolist() == [0.0, 1.0, 0.0]
                )
            )
        await all_of_them[0].close()
        for gateway in gateways[1:]:
            await until(
                lambda gateway=gateway: not gateway.table.candidates("m").in_flight.any()  # type: ignore[misc]
            )
        assert at(all_of_them[1])[addresses[0]] == "silent"
    finally:
        for each in all_of_them:
            await each.close()


async def test_peers_are_followed_as_a_name_has_them() -> None:
    port = free_port()
    found = [LOOPBACK, "127.0.0.2", "::1"]

    async def resolve(_: str, __: int) -> list[str]:
        if not found:
            raise OSError("no such name")
        return [*found]

    own, other = Gateway(next(_numbers)), Gateway(next(_numbers))
    sockets = PeerSockets([f"gateways:{port}"], LOOPBACK, port, resolve)
    one = replicas(own, sockets)
    two = replicas(other, PeerSockets([f"gateways:{port}"], "127.0.0.2", port, resolve))
    await one.open()
    await two.open()
    try:
        await until(lambda: at(one) == {f"127.0.0.2:{port}": "heard"})  # and at no ::1

        found.clear()
        await sockets.look()
        assert at(one) == {f"127.0.0.2:{port}": "heard"}  # as they were

        found.append(LOOPBACK)
        await sockets.look()
        assert at(one) == {}
    finally:
        await one.close()
        await two.close()


async def test_a_port_that_is_taken_is_named() -> None:
    port = free_port()
    first = replicas(Gateway(next(_numbers)), PeerSockets([f"{LOOPBACK}:{port}"], LOOPBACK, port))
    second = replicas(Gateway(next(_numbers)), PeerSockets([f"{LOOPBACK}:{port}"], LOOPBACK, port))
    await first.open()
    try:
        with pytest.raises(ConfigError, match=rf"peers: port {port} at 127\.0\.0\.1: .* in use"):
            await second.open()
    finally:
        await first.close()
        await second.close()


async def test_a_connection_from_elsewhere_is_closed_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def resolve(_: str, __: int) -> list[str]:
        return ["192.0.2.1"]

    port = free_port()
    sockets = PeerSockets([f"gateways:{port}"], LOOPBACK, port, resolve)
    await sockets.open(lambda *_: None, lambda _: None)
    try:
        await sockets.look()
        for _ in range(2):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            with suppress(ConnectionResetError):
                assert await reader.read(-1) == b""
            writer.close()
    finally:
        await sockets.close()

    assert caplog.text.count(f"a connection from {LOOPBACK} to port {port} is closed") == 1


async def test_what_a_peer_subscribes_to_is_not_kept() -> None:
    port = free_port()
    sockets = PeerSockets([f"{LOOPBACK}:{port}"], LOOPBACK, port)
    await sockets.open(lambda *_: None, lambda _: None)
    try:
        await sockets.look()
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(GREETING + frame(COMMAND, ready("SUB")))
        for number in range(1000):
            writer.write(frame(0, b"\1%d" % number))
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                await reader.read(-1)  # to the end of the connection
        writer.close()
    finally:
        await sockets.close()
