"""Around vLLM's own routes, inside its key check: what is asked is examined before vLLM reads the
request, and what was answered is told beside the answer.

asked                                      then
cannot be read, or not be kept             400 with the place in the request, in vLLM's own form
guided_json and its kind                   vLLM reads `structured_outputs` instead
keywords that nobody enforces              `x-inferway-unenforced` names them; 400 with
                                           `strict`, if the settings say so
an answer in one piece                     `x-inferway-valid`
a stream, and reports are on               a comment before [DONE], or at the end
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inferway_structured.answers import AnswerJudge
from inferway_structured.errors import InferwayError, InvalidRequestError, SpecError
from inferway_structured.report import UNENFORCED_HEADER, VALID_HEADER, in_request, named, validity
from inferway_structured.requests import FIELDS, in_vllms_words, key_of_body, parse_constraints
from inferway_structured.spec import OutputConstraint
from inferway_structured.texts import MAX_CHARS
from inferway_structured.turns import ANYBODY
from inferway_structured.vllm.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    answer_error,
    read_body,
    replayed,
)
from inferway_structured.vllm.calls import ON_ITS_WAY, RequestContext, about_calls
from inferway_structured.vllm.core import with_flags
from inferway_structured.vllm.endpoints import PREFIX, Endpoints, ask_cores
from inferway_structured.vllm.front import ApiServerSide, verdict_of
from inferway_structured.vllm.metrics import PATH as METRICS
from inferway_structured.vllm.metrics import Collector
from inferway_structured.vllm.settings import settings_of

if TYPE_CHECKING:
    from inferway_structured.grammar import Unenforced

Why = Callable[[], Awaitable[InferwayError | None]]

WHY_SECONDS = 1.0
MAX_KEYED_ON_LOOP = 256 * 1024  # bytes of a body: 0.2 ms
VERDICT_SECONDS = 10.0  # of an engine core that has answered the request already
MAX_ANSWER_BYTES = 8 << 20  # a longer answer is not held back, and not judged
_ASKING = ("/completions", "/responses", "/messages", "/generate", "/batch")
_WORDS = tuple(f'"{name}"'.encode() for name in sorted(FIELDS))


class Middleware:
    def __init__(self, app: App, front: ApiServerSide, collector: Collector) -> None:
        self.app = app
        self.front = front
        self.endpoints = Endpoints(front)
        self.collector = collector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith(PREFIX):
            return await self.endpoints(path, scope, receive, send)
        if path == METRICS:
            await self.collector.refresh(scope["app"].state.engine_client)
        if scope["method"] != "POST" or not path.endswith(_ASKING):
            return await self.app(scope, receive, send)
        return await self._examined(path, scope, receive, send)

    async def _examined(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body is None:
            return None
        vllm_config = scope["app"].state.vllm_config
        settings = settings_of(vllm_config)
        try:
            config = vllm_config.structured_outputs_config
            key, asked = await self._asked(path, body, config)
            if not asked:
                return await self.app(scope, replayed(body, receive), send)
            client = scope["app"].state.engine_client
            request, unenforced = await self.front.examine(
                asked, client, key=key, refuses_unenforced=settings.refuse_unenforced
            )
            body = await self._told(body, request.asked)
        except InferwayError as e:
            return await answer_error(send, e)
        again = replayed(body, receive)
        token = ON_ITS_WAY.set(request)

        async def why() -> InferwayError | None:
            return await why_ended(client, request.ids, request.asked)

        answer = Answer(self.front, request, unenforced, settings.report_validity, why, send)
        try:
            await self.app(scope, again, answer.send)
        finally:
            ON_ITS_WAY.reset(token)

    async def _asked(
        self, path: str, body: bytes, config: Any
    ) -> tuple[bytes | None, Sequence[OutputConstraint]]:
        """Raises SpecError. What vLLM cannot read either is left to its own error."""
        if not may_hold_spec(body):
            return None, ()
        size = len(body)
        key = key_of_body(path, body) if size <= MAX_KEYED_ON_LOOP else None
        asked = await self.front.verdicts.read_request(
            ANYBODY, key, _read, path, body, config, num_bytes=size
        )
        return key, asked

    async def _told(self, body: bytes, asked: Sequence[OutputConstraint]) -> bytes:
        """The body that vLLM is to read. Raises InvalidRequestError."""
        if not any(each.ignored and not each.free for each in asked):
            return body
        return await self.front.verdicts.read(ANYBODY, _written, body, asked, num_bytes=len(body))


def may_hold_spec(body: bytes) -> bool:
    """Return whether a name that asks for a shape may be in a body; one may be written with
    escapes."""
    return any(word in body for word in _WORDS) or b"\\u" in body


def _read(path: str, body: bytes, config: Any) -> list[OutputConstraint]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return []
    if not isinstance(fields, dict):
        return []
    found = parse_constraints(path, fields)
    return [replace(each, spec=with_flags(each.spec, config)) for each in found]


def _written(body: bytes, asked: Sequence[OutputConstraint]) -> bytes:
    try:
        return json.dumps(in_vllms_words(json.loads(body), asked)).encode()
    except RecursionError:
        raise InvalidRequestError("body: nested too deeply") from None


class Answer:
    """An answer on its way out to the client."""

    def __init__(
        self,
        front: ApiServerSide,
        request: RequestContext,
        unenforced: Sequence[Unenforced],
        reports: bool,
        why: Why,
        send: Send,
    ) -> None:
        """`why` says what vLLM's error was about, if it was about the shape."""
        self._verdicts = front.verdicts
        self._request = request
        self._unenforced = unenforced
        self._why = why
        self._send = send
        self._judge = AnswerJudge(
            MAX_ANSWER_BYTES, MAX_CHARS, count=front.verdicts.count_answer, reports=reports
        )
        self._start: Message | None = None  # held back
        self._error: bytearray | None = None  # that may be about the shape
        self._is_refused = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._error is not None:
            await self._collect(self._error, message)
        elif self._judge.is_read:
            await self._pass(message)
        elif await self._has_begun():
            await self._send(message)

    async def _begin(self, start: Message) -> None:
        status = start["status"]
        # A grammar may have ended the request: vLLM answers 500 to that up to 0.32, and 400 from
        # 0.33 on, whatever the reason was.
        if status in (400, 500) and self._request.ids:
            self._start, self._error = start, bytearray()
            return
        start["headers"] = headers = list(start.get("headers", ()))
        self._judge.start(status, [(name.lower(), value) for name, value in headers])
        # The head waits for a body: vLLM sends it before its engine has the request.
        self._start = start

    async def _has_begun(self, valid: bool | None = None) -> bool:
        """Send the head, with what the engine does not enforce. Return False if the answer was an
        error instead: the engine core has refused the shape."""
        if self._start is None:
            return not self._is_refused
        start, self._start = self._start, None
        found = await self._found() if start["status"] == 200 else b""
        if isinstance(found, InferwayError):
            self._is_refused = True
            await answer_error(self._send, found)
            return False
        if found:
            start["headers"].append((UNENFORCED_HEADER, found))
        if valid is not None:
            start["headers"].append((VALID_HEADER, validity(valid)))
        await self._send(start)
        return True

    async def _found(self) -> bytes | InferwayError:
        """Return the keywords that are not enforced, or what the engine core refuses."""
        left = self._unenforced
        if self._request.judging is not None:
            try:
                judging = asyncio.shield(self._request.judging)
                found = await asyncio.wait_for(judging, VERDICT_SECONDS)
            except TimeoutError:
                return b"unknown"
            if isinstance(found, InferwayError):
                return found
            left = found.unenforced
        return named([*left, *self._request.left_free])

    async def _collect(self, error: bytearray, message: Message) -> None:
        error += message.get("body", b"")
        if message.get("more_body", False) and len(error) <= MAX_ANSWER_BYTES:
            return
        start, self._start, self._error = self._start, None, None
        assert start is not None
        found = await self._found()
        reason = found if isinstance(found, InferwayError) else await self._why()
        if reason is not None:
            await answer_error(self._send, reason)
            return
        await self._send(start)
        await self._send({**message, "body": bytes(error)})

    async def _pass(self, message: Message) -> None:
        passed = self._judge.feed(message.get("body", b""))
        more = message.get("more_body", False)
        valid: bool | None = None
        ends = self._judge.is_read and (self._judge.is_done or not more)
        if ends:
            valid = await self._verdicts.is_valid(self._request.asked, self._judge.said())
        may_begin = ends or not self._judge.holds_all
        known = valid if self._judge.holds_all else None
        if may_begin and not await self._has_begun(known):
            return
        if ends:
            passed += self._judge.rest(validity(valid))
        if passed or not more:
            await self._send({**message, "body": passed})


async def why_ended(
    engine_client: Any, ids: Sequence[str], asked: Sequence[OutputConstraint]
) -> InferwayError | None:
    """Return the engine core's reason for the end of one of these requests; None if it has none."""
    try:
        asking = ask_cores(engine_client, "why", {"requests": ids})
        told = next((each for each in await asyncio.wait_for(asking, WHY_SECONDS) if each), None)
    except Exception:  # vLLM's own error stays
        return None
    if told is None:
        return None
    error = verdict_of(told)
    if isinstance(error, SpecError):
        return about_calls(asked, error) if asked[-1].tool else in_request(asked[0], error)
    return error if isinstance(error, InferwayError) else None
