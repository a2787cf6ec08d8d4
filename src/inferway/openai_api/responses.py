"""errors and models -> the bodies that OpenAI's clients expect."""

from __future__ import annotations

import msgspec

from inferway.errors import FleetError, InferwayError, RequestError


def error_status(error: InferwayError) -> int:
    """The HTTP status that answers `error`."""
    return error.status if isinstance(error, RequestError | FleetError) else 500


def error_body(error: InferwayError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    if isinstance(error, RequestError | FleetError):
        kind, param, code = error.type, error.param, error.code
    else:
        kind, param, code = FleetError.type, None, None
    return msgspec.json.encode(
        {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
    )


def error_event(error: InferwayError) -> bytes:
    """The same as a server-sent event: what a stream that broke ends with."""
    return b"data: " + error_body(error) + b"\n\n"
