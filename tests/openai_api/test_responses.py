"""Errors on the wire."""

from __future__ import annotations

import msgspec
import pytest

from inferway.errors import (
    ForbiddenError,
    InferwayError,
    InvalidRequestError,
    NoEndpointError,
    QueueFullError,
    RenderError,
    UnauthorizedError,
    UnknownModelError,
    UpstreamError,
    UpstreamTimeoutError,
)
from inferway.openai_api.responses import error_body, error_event, error_status


def test_a_request_error_has_openais_shape() -> None:
    body = msgspec.json.decode(error_body(InvalidRequestError("model: no", param="model")))

    assert body == {
        "error": {
            "message": "model: no",
            "type": "invalid_request_error",
            "param": "model",
            "code": None,
        }
    }


def test_a_fleet_error_is_a_server_error() -> None:
    error = NoEndpointError("none")

    assert error_status(error) == 503
    assert msgspec.json.decode(error_body(error))["error"]["type"] == "server_error"


def test_what_we_cannot_render_has_its_reason_as_code() -> None:
    error = RenderError("x", reason="media")

    assert error_status(error) == 503
    assert msgspec.json.decode(error_body(error))["error"]["code"] == "media"


def test_a_broken_stream_ends_with_the_error_as_an_event() -> None:
    event = error_event(NoEndpointError("none"))

    assert event.startswith(b'data: {"error":')
    assert event.endswith(b"}\n\n")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("no", param="messages"), "invalid_request_error"),
        (UnauthorizedError("no"), "authentication_error"),
        (ForbiddenError("no"), "permission_error"),
        (UnknownModelError("no"), "not_found_error"),
        (QueueFullError("no"), "rate_limit_error"),
        (NoEndpointError("no"), "overloaded_error"),
        (UpstreamError("no"), "api_error"),
        (UpstreamTimeoutError("no"), "timeout_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/a/v1/messages/count_tokens"])
def test_a_request_for_messages_gets_anthropics_shape(
    error: InferwayError, kind: str, path: str
) -> None:
    told = {"type": "error", "error": {"type": kind, "message": "no"}}

    assert msgspec.json.decode(error_body(error, path)) == told


def test_so_does_a_stream_of_messages_that_broke() -> None:
    name, data = error_event(UpstreamError("no"), "/v1/messages").split(b"\n", 1)

    assert name == b"event: error"
    assert data.startswith(b'data: {"type":"error","error":{')
    assert data.endswith(b"}}\n\n")
