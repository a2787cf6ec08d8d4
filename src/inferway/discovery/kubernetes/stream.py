"""A watch's bytes -> events, and what there is after them. Pure.

What a real server does (extproc.md, section 5): one JSON object a line, cut into chunks anywhere; a
resource version that is too old is an answer 200 with one event ERROR of code 410; what no longer
matches the selector is DELETED; a BOOKMARK carries a version and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferway.discovery.kubernetes.objects import Object
from inferway.errors import WireError
from inferway_structured.decoding import UNREADABLE

MAX_LINE_BYTES = 8 << 20  # etcd itself takes objects of 1.5 MiB


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: dict[str, Any]


_EVENT = msgspec.json.Decoder(Event)


class Expired(WireError):
    """What we know is too old to go on from: list again."""


class Refused(WireError):
    """The server ended the watch with another error."""


@dataclass(slots=True)
class Lines:
    """Chunks, cut anywhere -> events."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Raises WireError for a line that is no event."""
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_LINE_BYTES:
            raise WireError(f"a watch's line is over {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                try:
                    yield _EVENT.decode(line)
                except UNREADABLE as e:
                    raise WireError(f"a watch's line is no event: {e}") from e


@dataclass(slots=True)
class Mirror:
    """What there is, by namespace and name, as of `version`."""

    version: str = ""
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)

    def replace(self, items: list[Object], version: str) -> None:
        """By a list."""
        self.objects = {_key(item): item for item in items}
        self.version = version

    def apply(self, event: Event) -> bool:
        """Whether what there is has changed. Raises Expired or Refused."""
        if event.type == "ERROR":
            raise _error(event.object)
        self.version = event.object["metadata"]["resourceVersion"]
        if event.type == "BOOKMARK":
            return False
        key = _key(event.object)
        if event.type == "DELETED":
            return self.objects.pop(key, None) is not None
        self.objects[key] = event.object
        return True


def _key(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _error(status: Object) -> WireError:
    code, reason = status.get("code"), status.get("reason")
    kind = Expired if code == 410 or reason in ("Expired", "Gone") else Refused
    return kind(f"{code} {reason}: {status.get('message')}")
