"""Messages about requests, and about what is learned from them. The workers of one gateway, and
several gateways, send messages of the same kind to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from inferway.fleet.elsewhere import Count
from inferway.model import BlockKey, HolderId
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.sharing import Event

VERSION = 2
MOST_NAME = 128  # characters of a gateway's name
MOST_PLUGINS = 16
MOST_ITEMS = 4096  # of a list

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Plugin = Annotated[int, Meta(ge=0, lt=MOST_PLUGINS)]


class _PeerTold(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields are told by their places; new ones go to the end."""


class Shared(_PeerTold, frozen=True, gc=False):
    """A plugin that learns tells an event; it has a place among them. Between gateways, the `at` of
    an event is seconds ago."""

    plugin: _Plugin
    event: Event


class KnownTold(_PeerTold, frozen=True, gc=False):
    """The sender has learned this of some engines, for those that do not know it yet."""

    plugin: _Plugin
    known: Known


class OnItsWay(_PeerTold, frozen=True, gc=False):
    """A prompt is on its way to a holder, and its blocks count as held there; without blocks: they
    count no more. Processes of one gateway alone tell it, which have the same holders."""

    number: _Number  # among those of its worker
    holder: HolderId
    keys: Sequence[BlockKey] = ()


class PeerMessage(_PeerTold, frozen=True, gc=False):
    """A message tells what has happened, is so, or was learned. The first three fields are those of
    all versions: they name a gateway of another one. `begins`: all that is so follows, and whoever
    has missed a message goes on from here."""

    version: int
    number: _Number
    name: Annotated[str, Meta(max_length=MOST_NAME)]
    begins: bool = False
    shared: Annotated[list[Shared], Meta(max_length=MOST_ITEMS)] = []
    counts: Annotated[list[Count], Meta(max_length=MOST_ITEMS)] = []  # as of now
    known: Annotated[list[KnownTold], Meta(max_length=MOST_ITEMS)] = []
    prompts: Annotated[list[OnItsWay], Meta(max_length=MOST_ITEMS)] = []


class PeerTold(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A `PeerMessage` of the process in that place, or of another gateway, which the hub passes on
    unread. Nothing: it has ended, and its requests with it."""

    who: int
    payload: bytes = b""


encode = msgspec.msgpack.Encoder().encode
decode_peer = msgspec.msgpack.Decoder(PeerMessage).decode


def of_process(
    shared: list[Shared] | None = None,
    known: list[KnownTold] | None = None,
    prompts: list[OnItsWay] | None = None,
) -> bytes:
    """Return a message between processes of one gateway, whose connection loses none."""
    message = PeerMessage(VERSION, 0, "", False, shared or [], [], known or [], prompts or [])
    return encode(message)
