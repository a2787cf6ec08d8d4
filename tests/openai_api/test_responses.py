"""Errors on the wire."""

from __future__ import annotations

import msgspec

from inferway.errors import InvalidRequestError, NoEndpointError, RenderError
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
