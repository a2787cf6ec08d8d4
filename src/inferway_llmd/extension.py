"""The endpoint picker as a gateway's extension."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from inferway.extension import Core, Extension
from inferway.http.extension_parts import ExtensionParts
from inferway.metrics import Family

if TYPE_CHECKING:
    from inferway.app import Gateway
    from inferway_llmd.ext_proc.server import PickerServer

log = logging.getLogger("inferway")


def endpoint_picker(core: Core) -> Extension | None:
    """Return the picker of a gateway that picks and answers requests itself: the entry point
    `endpoint-picker`."""
    return PickerExtension(core) if core.picks and core.process != "hub" else None


class PickerExtension(Extension):
    """`server` is there once it has started."""

    name = "endpoint picker"

    def __init__(self, core: Core) -> None:
        self.server: PickerServer | None = None
        self._core = core

    async def start(self, parts: ExtensionParts, /) -> None:
        from inferway_llmd.ext_proc.build import build_picker  # an extra

        self.server = build_picker(self._core, parts)

    async def listen(self) -> None:
        assert self.server is not None
        server = self.server
        await server.start()
        how = "TLS" if self._core.settings.picker.secure else "in the clear"
        words = "the picker is picking for a proxy at %s:%d (%s), with health checks on port %s"
        log.info(words, server.host, server.port, how, server.health_port)

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(self._core.settings.timeouts.drain)

    def families(self) -> Iterable[Family]:
        if self.server is None:
            return ()
        from inferway_llmd.ext_proc.metrics import picker_families  # an extra

        kubernetes = self._core.settings.discovery.kubernetes
        pool = (kubernetes.pool if kubernetes is not None else None) or "inferway"
        return picker_families(self.server.counts, self._core.fleet.engines, pool)


def picker_of(gateway: Gateway) -> PickerServer | None:
    """Return the server of the gateway's picker; None if it has none."""
    found = [each for each in gateway.extensions if isinstance(each, PickerExtension)]
    return found[0].server if found else None
