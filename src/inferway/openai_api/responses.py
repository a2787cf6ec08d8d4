"""errors -> the bodies that clients expect: OpenAI's, and Anthropic's on its paths."""

from __future__ import annotations

import msgspec

from inferway.errors import FleetError, InferwayError, RequestError

# Status -> Anthropic's `error.type` (its API's documentation of errors).
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OF_MESSAGES = ("/messages", "/messages/count_tokens")


def error_status(error: InferwayError) -> int:
    """Return the HTTP status that answers `error`."""
    return error.status if isinstance(error, RequestError | FleetError) else 500


def error_body(error: InferwayError, path: str = "") -> bytes:
    """Return `{"error": {"message", "type", "param", "code"}}`, or for a path of messages
    `{"type": "error", "error": {"type", "message"}}`."""
    if path.endswith(_OF_MESSAGES):
        status = error_status(error)
        kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        told = {"type": "error", "error": {"type": kind, "message": str(error)}}
        return msgspec.json.encode(told)
    if isinstance(error, RequestError | FleetError):
        kind, param, code = error.type, error.param, error.code
    else:
        kind, param, code = FleetError.type, None, None
    return msgspec.json.encode(
        {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
    )


def keep_alive_event(path: str) -> bytes:
    """Return what a stream's client is sent while there is nothing to say: a comment, which every
    client of server-sent events ignores; for messages Anthropic's `ping`."""
    if path.endswith(_OF_MESSAGES):
        return b'event: ping\ndata: {"type": "ping"}\n\n'
    return b": keep-alive\n\n"


def answer_event(answer: bytes, path: str, *, is_error: bool) -> bytes:
    """Return an engine's whole JSON answer as a server-sent event, for a client whose stream has
    begun."""
    name = b"event: error\n" if is_error and path.endswith(_OF_MESSAGES) else b""
    lines = b" ".join(answer.split(b"\n"))  # in JSON, the end of a line is a space
    return b"%bdata: %b\n\n" % (name, lines.replace(b"\r", b" "))


def error_event(error: InferwayError, path: str = "") -> bytes:
    """Return the body as a server-sent event, with which a broken stream ends."""
    name = b"event: error\n" if path.endswith(_OF_MESSAGES) else b""
    return b"%bdata: %b\n\n" % (name, error_body(error, path))
