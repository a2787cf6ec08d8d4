"""vLLM's HTTP routes in front of a simulated engine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from inferway import __version__
from inferway.errors import InferwayError, InvalidRequestError, RenderError, RequestError
from inferway.openai_api.requests import (
    PromptBody,
    decode_fields,
    parse_chat,
    parse_completion,
    parse_count_tokens,
    parse_embeddings,
    parse_generate,
    parse_messages,
    parse_responses,
)
from inferway.openai_api.sent_messages import thought_marks
from inferway.prompts.chat.responses_input import as_chat
from inferway_sim import scale_out
from inferway_sim.answers import AnswerFormat, ChatAnswer, CompletionAnswer
from inferway_sim.core import Disturbance, EngineCore
from inferway_sim.dev_mode import DevMode
from inferway_sim.embeddings import as_completion, embeddings_answer
from inferway_sim.messages import MessagesAnswer, message_error, token_count
from inferway_sim.metrics import EngineMetrics
from inferway_sim.models import AdapterNames
from inferway_sim.planning import Options, PlannedReply, Planner, read_bootstrap, read_options
from inferway_sim.publisher import EventSourceEntry
from inferway_sim.responses import ResponsesAnswer
from inferway_sim.scale_out import DISABLED, GenerateAnswer, rendered
from inferway_sim.scheduler import Emitted
from inferway_sim.server_info import ServerInfo
from inferway_sim.structured import Structured
from inferway_sim.text import TextModel

_MAX_BODY_BYTES = 64 << 20
_ERROR_TYPES: dict[int, str] = {
    HTTPStatus.BAD_REQUEST: "BadRequestError",
    HTTPStatus.NOT_FOUND: "NotFoundError",
    HTTPStatus.TOO_MANY_REQUESTS: "RateLimitError",
    HTTPStatus.INTERNAL_SERVER_ERROR: "InternalServerError",
}


SCALING = "The model is currently scaling. Please try again later."
_DISTURBANCE = msgspec.json.Decoder(Disturbance)


class Server:
    """The routes of an engine. Holds nothing of its own; the engine's parts are given."""

    def __init__(
        self,
        core: EngineCore,
        planner: Planner,
        names: AdapterNames,
        model: TextModel,
        metrics: EngineMetrics,
        event_source: EventSourceEntry | None,
        reset_cache: Callable[[], bool],
        max_model_len: int,
        info: ServerInfo,
        scale_out: bool = False,
        structured: Structured | None = None,
        dev_mode: DevMode | None = None,
    ) -> None:
        self._core = core
        self._planner = planner
        self._names = names
        self._model = model
        self._metrics = metrics
        self._event_source = event_source
        self._reset_cache = reset_cache
        self._max_model_len = max_model_len
        self._info = info
        self._scale_out = scale_out
        self._structured = structured
        self._dev_mode = dev_mode

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(
            middlewares=[self._scale, _answer_errors], client_max_size=_MAX_BODY_BYTES
        )
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completion),
                web.post("/v1/responses", self.response),
                web.post("/v1/messages", self.message),
                web.post("/v1/messages/count_tokens", self.count_tokens),
                web.post("/v1/embeddings", self.embed),
                web.post("/inference/v1/generate", self.generate),
                web.post("/v1/chat/completions/render", self.render_chat),
                web.post("/v1/completions/render", self.render_completion),
                web.post("/tokenize", self.tokenize),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.post("/simulate", self.disturb),
                web.get("/v1/models", self.models),
                web.get("/kv_event_sources", self.kv_event_sources),
                web.get("/metrics", self.show_metrics),
                web.get("/metrics/", self.show_some_metrics),
                web.get("/health", self.health),
                web.get("/server_info", self.server_info),
                web.get("/version", self.version),
                *(() if self._structured is None else self._structured.routes()),
                *(() if self._dev_mode is None else self._dev_mode.routes()),
            ]
        )
        return app

    @web.middleware
    async def _scale(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer as vLLM does while elastic expert parallelism changes the number of ranks
        (entrypoints/serve/elastic_ep/middleware.py of 0.32)."""
        if self._core.is_scaling and request.path != "/simulate":
            return _json({"error": SCALING}, HTTPStatus.SERVICE_UNAVAILABLE)
        return await handler(request)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_chat, ChatAnswer)

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, parse_completion, CompletionAnswer)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer /inference/v1/generate: what completions say at once, its `sampling_params` do."""
        if not self._scale_out:
            return _disabled()
        raw = await request.read()
        body = parse_generate(raw)
        fields = decode_fields(raw)
        params = {**fields["sampling_params"], "n": None}
        shown = {name: fields.get(name) for name in ("stream_options", "return_token_ids")}
        options = read_options({**params, **shown})
        completion = scale_out.as_completion(body, self._max_model_len)
        id = _request_id(request, "generate-tokens")
        turns = await self._planner.plan(completion, options, self._core.now, id)
        answer = GenerateAnswer(self._names.answered_name(body.model), options)
        return await self._answered(request, answer, options, turns, is_streamed=bool(body.stream))

    async def response(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/responses: the input becomes the chat that the engine would make of it."""
        raw = await request.read()
        body = parse_responses(raw)
        options = read_options(decode_fields(raw))
        id = _request_id(request, "resp") + "_0"
        (turn,) = await self._planner.plan(as_chat(body), options, self._core.now, id)
        answer = ResponsesAnswer(self._names.answered_name(body.model), body)
        events = partial(_response_events, answer, turn) if body.stream else None
        return await self._answer(request, turn, events, answer.whole)

    async def message(self, request: web.Request) -> web.StreamResponse:
        """Answer /v1/messages: they become the chat that the engine would make of them."""
        raw = await request.read()
        body = parse_messages(raw)
        if body.max_tokens is None:
            raise InvalidRequestError("max_tokens: required field is missing", param="max_tokens")
        options = read_bootstrap(
            raw, Options(vllm_xargs=body.vllm_xargs, stop=_stop_sequences(raw))
        )
        try:
            chat = await self._model.chat_of(body)
            id = _request_id(request, "chatcmpl")
            (turn,) = await self._planner.plan(chat, options, self._core.now, id)
            marks = thought_marks(self._model.encode)
            answer = MessagesAnswer(self._names.answered_name(body.model), marks)
            events = partial(_message_events, answer, turn) if body.stream else None
            return await self._answer(request, turn, events, answer.whole)
        except RequestError as e:
            return _json(message_error(e, _kind(e.status)), e.status)

    async def count_tokens(self, request: web.Request) -> web.Response:
        body = parse_count_tokens(await request.read())
        try:
            self._names.adapter(body.model)
            (ids,) = await self._model.tokenize(await self._model.chat_of(body))
        except RequestError as e:
            return _json(message_error(e, _kind(e.status)), e.status)
        return _json(token_count(len(ids)))

    async def embed(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = parse_embeddings(raw)
        id = _request_id(request, "embd")
        turns = await self._planner.plan(as_completion(body), Options(), self._core.now, id)
        with self._core.submit([turn.job for turn in turns]) as tokens:
            _ = [each async for each in tokens]
        prompts = [turn.prompt_ids for turn in turns]
        encoding = decode_fields(raw).get("encoding_format")
        name = self._names.answered_name(body.model)
        return _json(embeddings_answer(name, prompts, encoding))

    async def render_chat(self, request: web.Request) -> web.Response:
        """Answer with the prompt that the engine would be given for a chat."""
        return await self._render(request, parse_chat, lambda prompts: prompts[0])

    async def render_completion(self, request: web.Request) -> web.Response:
        return await self._render(request, parse_completion, lambda prompts: prompts)

    async def _render(
        self,
        request: web.Request,
        parse: Callable[[bytes], PromptBody],
        shape: Callable[[list[dict[str, Any]]], Any],
    ) -> web.Response:
        if not self._scale_out:
            return _disabled()
        body = parse(await request.read())
        self._names.adapter(body.model)
        prompts = await self._model.tokenize(body)
        return _json(shape(rendered(body, prompts, self._max_model_len)))

    async def tokenize(self, request: web.Request) -> web.Response:
        body = _parse_either(await request.read())
        self._names.adapter(body.model)
        ids = (await self._model.tokenize(body))[0]
        return _json(
            {
                "count": len(ids),
                "max_model_len": self._max_model_len,
                "tokens": ids.tolist(),
                "token_strs": None,
            }
        )

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        return _json({"success": self._reset_cache()})

    async def disturb(self, request: web.Request) -> web.Response:
        """Trouble the engine's core, as the body says; an empty one ends all trouble."""
        try:
            disturbance = _DISTURBANCE.decode(await request.read() or b"{}")
        except msgspec.DecodeError as e:
            raise InvalidRequestError(f"body: {e}") from e
        self._core.disturb(disturbance)
        return _json(disturbance)

    async def models(self, _: web.Request) -> web.Response:
        return _json(self._names.listing())

    async def kv_event_sources(self, _: web.Request) -> web.Response:
        """Publisher settings per data-parallel rank; a simulated engine has rank 0 only."""
        source = self._event_source
        return _json({} if source is None else {"0": source})

    async def show_metrics(self, _: web.Request) -> web.Response:
        return _page(self._metrics.text())

    async def show_some_metrics(self, request: web.Request) -> web.Response:
        """Answer /metrics/ as vLLM does: behind the slash is prometheus_client's own application,
        which knows `name[]`."""
        return _page(self._metrics.text(request.query.getall("name[]", [])))

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(
            status=HTTPStatus.SERVICE_UNAVAILABLE if self._core.is_dead else HTTPStatus.OK
        )

    async def server_info(self, request: web.Request) -> web.Response:
        """Return the engine's configuration, as vLLM tells it in its development mode."""
        return _json(self._info(as_json=request.query.get("config_format") == "json"))

    async def version(self, _: web.Request) -> web.Response:
        """Return the version of vLLM that is simulated, in the form of vLLM's own builds."""
        return _json({"version": f"{self._info.version}+inferway.{__version__}"})

    async def _generate(
        self,
        request: web.Request,
        parse: Callable[[bytes], PromptBody],
        answers: Callable[[str, Options], AnswerFormat],
    ) -> web.StreamResponse:
        """Leaving early, because the client left, aborts the jobs."""
        raw = await request.read()
        body = parse(raw)
        options = read_options(decode_fields(raw))
        id = _request_id(request, body.id_prefix)
        turns = await self._planner.plan(body, options, self._core.now, id)
        answer = answers(self._names.answered_name(body.model), options)
        return await self._answered(request, answer, options, turns, is_streamed=bool(body.stream))

    async def _answered(
        self,
        request: web.Request,
        answer: AnswerFormat,
        options: Options,
        turns: Sequence[PlannedReply],
        *,
        is_streamed: bool,
    ) -> web.StreamResponse:
        with self._core.submit([turn.job for turn in turns]) as tokens:
            if is_streamed:
                return await _stream(request, answer, options, turns, tokens)
            return await _collect(answer, turns, tokens)

    async def _answer(
        self,
        request: web.Request,
        turn: PlannedReply,
        events: Callable[[AsyncIterator[Emitted]], AsyncIterator[bytes]] | None,
        whole: Callable[[PlannedReply, str], Any],
    ) -> web.StreamResponse:
        """Answer with one turn: as `events` of its tokens, or without those as the `whole`."""
        with self._core.submit([turn.job]) as tokens:
            if events is not None:
                return await _send(request, events(tokens))
            text = "".join([_text_of(turn, item) async for item in tokens])
            return _json(whole(turn, text))


async def _collect(
    answer: AnswerFormat, turns: Sequence[PlannedReply], tokens: AsyncIterator[Emitted]
) -> web.Response:
    texts = ["" for _ in turns]
    by_job = {turn.job: turn for turn in turns}
    async for item in tokens:
        turn = by_job[item.job]
        texts[turn.index] += _text_of(turn, item)
    return _json(answer.whole(turns, texts))


async def _stream(
    request: web.Request,
    answer: AnswerFormat,
    options: Options,
    turns: Sequence[PlannedReply],
    tokens: AsyncIterator[Emitted],
) -> web.StreamResponse:
    events = _events(answer, options, turns, tokens)
    return await _send(request, (b"data: " + event + b"\n\n" async for event in events))


async def _response_events(
    answer: ResponsesAnswer, turn: PlannedReply, tokens: AsyncIterator[Emitted]
) -> AsyncIterator[bytes]:
    text = ""
    for event in answer.opening():
        yield event
    async for item in tokens:
        more = _text_of(turn, item)
        if more:
            text += more
            yield answer.delta(more)
    for event in answer.closing(turn, text):
        yield event


async def _message_events(
    answer: MessagesAnswer, turn: PlannedReply, tokens: AsyncIterator[Emitted]
) -> AsyncIterator[bytes]:
    is_open = False
    try:
        async for item in tokens:
            if not is_open:
                is_open = True
                yield answer.opening(turn)
            for event in answer.delta(item.token, _text_of(turn, item)):
                yield event
    except RequestError as e:
        if not is_open:
            yield answer.opening(turn)
        yield answer.failure(e)
        return
    for event in answer.closing(turn):
        yield event


async def _send(request: web.Request, events: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse()
    response.headers["Content-Type"] = "text/event-stream; charset=utf-8"
    await response.prepare(request)
    try:
        async for event in events:
            await response.write(event)
        await response.write_eof()
    except ConnectionResetError:
        pass  # the client left; the caller aborts what it asked for
    except RequestError:
        # vLLM has no event for it here: the stream breaks off.
        if request.transport is not None:
            request.transport.abort()
    return response


async def _events(
    answer: AnswerFormat,
    options: Options,
    turns: Sequence[PlannedReply],
    tokens: AsyncIterator[Emitted],
) -> AsyncIterator[bytes]:
    by_job = {turn.job: turn for turn in turns}
    is_open = False
    try:
        async for item in tokens:
            for chunk in () if is_open else answer.opening(turns):
                yield msgspec.json.encode(chunk)
            is_open = True
            turn = by_job[item.job]
            finish_reason = turn.finish_reason if item.is_last else None
            text = _text_of(turn, item)
            yield msgspec.json.encode(answer.chunk(turn, text, item.token, finish_reason))
    except RequestError as e:
        for chunk in () if is_open else answer.opening(turns):
            yield msgspec.json.encode(chunk)
        yield msgspec.json.encode(_error_body(e, e.status, e.param))
        yield b"[DONE]"
        return
    if options.stream_options is not None and options.stream_options.include_usage:
        yield msgspec.json.encode(answer.usage_chunk(turns))
    yield b"[DONE]"


def _text_of(turn: PlannedReply, item: Emitted) -> str:
    """The end-of-reply token is counted and shown among the ids, but has no text."""
    if turn.sends is not None:
        turn.num_said += 1
        return turn.sends[turn.num_said - 1]
    if item.is_last and turn.finish_reason == "stop":
        return ""
    return turn.detokenizer.add(item.token, is_last=item.is_last)


class _Stops(msgspec.Struct, frozen=True):
    stop_sequences: list[str] | None = None


def _stop_sequences(raw: bytes) -> list[str] | None:
    """Return where an answer in messages ends. Raises InvalidRequestError."""
    try:
        return msgspec.json.decode(raw, type=_Stops).stop_sequences
    except msgspec.DecodeError as e:
        raise InvalidRequestError(f"body: {e}") from e


def _parse_either(raw: bytes) -> PromptBody:
    """`/tokenize` takes a chat's body or a completion's."""
    return parse_chat(raw) if b'"messages"' in raw else parse_completion(raw)


def _page(metrics: bytes) -> web.Response:
    return web.Response(body=metrics, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


@web.middleware
async def _answer_errors(
    request: web.Request, handler: Callable[[web.Request], Any]
) -> web.StreamResponse:
    """Answer what is raised on purpose with vLLM's error object; its `code` is the status."""
    try:
        response: web.StreamResponse = await handler(request)
    except RequestError as e:
        return _error(e, e.status, e.param)
    except RenderError as e:
        return _error(e, HTTPStatus.INTERNAL_SERVER_ERROR)
    return response


def _disabled() -> web.Response:
    error = {"message": DISABLED, "type": "PermissionDeniedError", "param": None}
    status = HTTPStatus.FORBIDDEN
    return _json({"error": {**error, "code": status}}, status)


def _error(error: InferwayError, status: int, param: str | None = None) -> web.Response:
    return _json(_error_body(error, status, param), status)


def _error_body(error: InferwayError, status: int, param: str | None) -> dict[str, Any]:
    body = {"message": str(error), "type": _kind(status), "param": param, "code": status}
    return {"error": body}


def _request_id(request: web.Request, kind: str) -> str:
    """The id under which the engine knows the request."""
    joint = "_" if kind == "resp" else "-"
    return f"{kind}{joint}{request.headers.get('X-Request-Id') or uuid.uuid4().hex}"


def _kind(status: int) -> str:
    return _ERROR_TYPES.get(status, "BadRequestError")
