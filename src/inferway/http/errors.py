"""Errors without what a client may not see of them."""

from __future__ import annotations

import copy
import logging

from inferway.errors import FleetError, InferwayError

log = logging.getLogger("inferway.forward")


def withheld(error: InferwayError, request_id: bytes) -> InferwayError:
    """Return `error` without engines' names: the same status and code. The log has what it said."""
    if not isinstance(error, FleetError) or error.in_public is None:
        return error
    log.warning(
        "request %s was answered with an error whose details its caller may not see: %s",
        request_id.decode(),
        error,
    )
    told = copy.copy(error)
    told.args = (f"{error.in_public}; the gateway's log has the reason",)
    return told
