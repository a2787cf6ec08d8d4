"""A plain HTTP client for tests, on the standard library: what it sends is what is written."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import Any

SECONDS = 120


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message  # names are case-insensitive
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def get(url: str, *, seconds: float = SECONDS) -> Answer:
    return _answer(urllib.request.Request(url), seconds)


def post(url: str, body: object, *, seconds: float = SECONDS) -> Answer:
    """`body`: bytes are sent as they are, all else as JSON."""
    return _answer(_post(url, body), seconds)


def open_stream(url: str, body: object, *, seconds: float = SECONDS) -> HTTPResponse:
    """The answer as it arrives: iterate over its lines, and close it."""
    response: HTTPResponse = urllib.request.urlopen(_post(url, body), timeout=seconds)
    return response


def answers(url: str) -> bool:
    """Does `url` answer 200 now?"""
    try:
        return get(url, seconds=5).status == 200
    except (OSError, HTTPException):
        return False


def _post(url: str, body: object) -> urllib.request.Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return urllib.request.Request(url, raw, {"content-type": "application/json"}, method="POST")


def _answer(request: urllib.request.Request, seconds: float) -> Answer:
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as e:
        with e:
            return Answer(e.code, e.headers, e.read())
