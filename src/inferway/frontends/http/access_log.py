"""One line per answered request, through the logger `inferway.access`.

A logging call costs half as much as proxying a whole request, so that lines are collected and
handed over together: one record has one or more lines, at most a second late.

method path status body-bytes milliseconds engine request-id
"""

from __future__ import annotations

import logging
import time

from inferway.frontends.http.responder import Responder

_FLUSH_LINES = 256


class AccessLog:
    """Collects lines; `flush` is called by the server's timer and at its end."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("inferway.access")
        self._lines: list[str] = []

    def add(self, responder: Responder) -> None:
        """`responder` has ended."""
        request = responder.request
        milliseconds = (time.perf_counter() - request.started) * 1e3
        self._lines.append(
            f"{request.method} {request.path[:200]} {responder.status} {responder.body_bytes} "
            f"{milliseconds:.1f} {responder.engine} {request.id.decode()}"
        )
        if len(self._lines) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Hands over what was collected."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._logger.info("%s", "\n".join(lines))
