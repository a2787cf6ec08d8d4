"""A parsed request -> the jobs that answer it: what each will say, and how it will end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from inferway.errors import InvalidRequestError, PromptTooLongError
from inferway.model import TokenIds
from inferway.openai_api.lenient import convert_leniently
from inferway.openai_api.requests import PromptBody, reads_cache
from inferway_sim.cache import EngineCache, Run
from inferway_sim.kv_transfer import Bootstrap, Connector, Transfer
from inferway_sim.models import AdapterNames
from inferway_sim.replies import Reply, SimRequest, spoken_text
from inferway_sim.scheduler import RunningRequest
from inferway_sim.text import Detokenizer, TextModel


def stopped(
    pieces: Iterable[str], stops: Sequence[str], *, are_sent: bool
) -> tuple[list[str], str | None]:
    """Return the text that is sent with each token of a reply, up to the one that completes a stop
    string, and that string; None if none comes. As with vLLM (vllm/v1/engine/detokenizer.py), not
    so much is sent that the start of a stop string might be in it. `pieces`: the text that each
    token completes; `are_sent`: stop strings are part of the answer."""
    lag = 0 if are_sent else max(map(len, stops)) - 1
    text, sent, sends = "", 0, [""]
    for piece in pieces:
        text += piece
        found = _found(text, len(piece), stops)
        if found is not None:
            stop, end = found
            sends.append(text[sent : end if are_sent else end - len(stop)])
            return sends[1:], stop
        before, sent = sent, max(sent, len(text) - lag)
        sends.append(text[before:sent])
    sends[-1] += text[sent:]
    return sends[1:], None


def _found(text: str, num_new: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """Return the first of the stop strings that the last characters complete, and where it ends."""
    for stop in stops if num_new else ():
        at = text.find(stop, max(0, len(text) - num_new - len(stop) + 1))
        if at >= 0:
            return stop, at + len(stop)
    return None


class StreamOptions(msgspec.Struct, frozen=True):
    """The options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Bootstrap(msgspec.Struct, frozen=True):
    """SGLang's fields, on every path."""

    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None


class Options(_Bootstrap, frozen=True):
    """Fields that only an engine acts on, and those that a simulated one refuses."""

    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    echo: bool | None = None
    logprobs: bool | int | None = None
    vllm_xargs: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The strings at which a reply ends."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in given if each]

    @property
    def report_all(self) -> bool:
        """True if reused blocks are to be reported as stored."""
        return (self.vllm_xargs or {}).get("kv_cache_report_mode") == "full"


@dataclass(slots=True)
class PlannedReply:
    """One prompt and its reply while it is generated."""

    index: int
    prompt_ids: TokenIds
    job: RunningRequest
    finish_reason: str
    detokenizer: Detokenizer
    stop_reason: str | None = None  # the stop string at which it ends
    sends: Sequence[str] | None = None  # the text with each token; None: what it completes
    num_said: int = 0  # tokens whose text was asked for

    @property
    def reference(self) -> dict[str, Any] | None:
        """The `kv_transfer_params` of the answer."""
        return None if self.job.transfer is None else self.job.transfer.reference


def _options(fields: dict[str, Any]) -> Options:
    try:
        return msgspec.convert(fields, Options)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return convert_leniently(fields, Options)


def read_options(fields: dict[str, Any]) -> Options:
    """Raises InvalidRequestError naming a field that is malformed or not simulated."""
    try:
        options = _options(fields)
    except msgspec.ValidationError as e:
        raise InvalidRequestError(f"body: {e}") from e
    for name, plain in (("n", 1), ("best_of", 1), ("use_beam_search", 0)):
        _refuse_unless(name, getattr(options, name), plain)
    _refuse_unless("echo", options.echo, 0)
    if options.logprobs is not None and options.logprobs is not False:
        _refuse("logprobs")
    return options


_BOOTSTRAP = msgspec.json.Decoder(_Bootstrap)


def read_bootstrap(raw: bytes, options: Options) -> Options:
    """Return the options with SGLang's fields of a body on a path that knows no other options."""
    found = _BOOTSTRAP.decode(raw)
    return msgspec.structs.replace(options, **msgspec.structs.asdict(found))


class Planner:
    """Turns requests into jobs. `max_model_len` is in tokens, prompt and reply together."""

    def __init__(
        self,
        model: TextModel,
        names: AdapterNames,
        cache: EngineCache,
        reply: Reply,
        max_model_len: int,
        transfer: Connector | None = None,
    ) -> None:
        self._model = model
        self._names = names
        self._cache = cache
        self._reply = reply
        self._max_model_len = max_model_len
        self._transfer = transfer

    async def plan(
        self, body: PromptBody, options: Options, now: float, request_id: str = ""
    ) -> list[PlannedReply]:
        """Return one reply per prompt, in order. Raises RequestError; an engine that keeps blocks
        for the request is then told that they are not wanted."""
        if self._transfer is None:
            return await self._plan(body, options, now)
        transfer = self._read_transfer(body, options, request_id, 0)
        try:
            turns = await self._plan(body, options, now)
        except BaseException:
            if transfer is not None:
                self._transfer.drop(transfer)
            raise
        for turn in turns:
            if turn.index:
                transfer = self._read_transfer(body, options, request_id, turn.index)
            turn.job.transfer = transfer
            if transfer is not None:
                self._settle(transfer, turn)
        return turns

    def _settle(self, transfer: Transfer, turn: PlannedReply) -> None:
        """Do what connectors do with the prefill leg's answer."""
        assert self._transfer is not None
        connector = self._transfer.config.connector
        if connector == "sglang" and transfer.keep_as:  # its prefill engines say one token
            turn.job.planned, turn.finish_reason = turn.job.planned[:1], "length"
        elif connector == "mooncake" and turn.finish_reason != "length":
            transfer.keep_as = ""

    def _read_transfer(
        self, body: PromptBody, options: Options, request_id: str, index: int
    ) -> Transfer | None:
        assert self._transfer is not None
        bootstrap = Bootstrap(
            options.bootstrap_host, options.bootstrap_port, options.bootstrap_room
        )
        if body.turns is None:  # vLLM numbers the prompts of a completion
            request_id += f"-{index}"
        return self._transfer.read(body.kv_transfer_params, bootstrap, request_id)

    async def _plan(self, body: PromptBody, options: Options, now: float) -> list[PlannedReply]:
        self._names.adapter(body.model)  # an unknown model is not worth tokenizing for
        prompts = await self._model.tokenize(body)
        for prompt in prompts:
            self._check_length(len(prompt))
        return [self._turn(body, options, i, p, now) for i, p in enumerate(prompts)]

    def _turn(
        self, body: PromptBody, options: Options, index: int, prompt_ids: TokenIds, now: float
    ) -> PlannedReply:
        adapter = self._names.adapter(body.model)
        run = Run(
            prompt_ids.tolist(),
            adapter,
            body.cache_salt,
            options.report_all,
            reads_cache=reads_cache(body),
        )
        text = spoken_text(body, index)
        request = SimRequest(
            model=body.model,
            body=body,
            read_text=partial(self._model.decode, run.tokens) if text is None else lambda: text,
            prompt_ids=prompt_ids,
            num_cached_tokens=self._cache.num_reusable_tokens(run),
        )
        # The reply's own tokens, as they will stand in the next turn's prompt.
        words = self._words(request)
        room = self._max_model_len - len(prompt_ids)
        limit = min(_max_tokens(body) or room, room)
        job = RunningRequest(run, (), arrived=now)
        turn = PlannedReply(index, prompt_ids, job, "", Detokenizer(self._model))
        self._say(turn, words, limit, options)
        if self._transfer is not None:
            job.retell = partial(self._retell, turn, request, limit, options)
        return turn

    def _say(self, turn: PlannedReply, words: list[int], limit: int, options: Options) -> None:
        """Plan what is said, and how it ends."""
        planned, reason = self._cut(words, limit, ignore_eos=bool(options.ignore_eos))
        if stops := options.stops:
            reads = Detokenizer(self._model)
            spoken = planned[:-1] if reason == "stop" else planned
            pieces = [reads.add(token) for token in spoken]
            sends, stop = stopped(
                [*pieces, *[""] * (len(planned) - len(spoken))],
                stops,
                are_sent=bool(options.include_stop_str_in_output),
            )
            if stop is not None:
                planned, reason = planned[: len(sends)], "stop"
            turn.sends, turn.stop_reason = sends, stop
        turn.job.planned, turn.finish_reason = planned, reason

    def _retell(
        self,
        turn: PlannedReply,
        request: SimRequest,
        limit: int,
        options: Options,
        held: list[int],
    ) -> None:
        """The blocks of the prompt hold other tokens than its own: they are what is answered."""
        told = replace(
            request,
            read_text=partial(self._model.decode, held),
            prompt_ids=np.array(held, dtype=np.uint32),
        )
        self._say(turn, self._words(told), limit, options)

    def _words(self, request: SimRequest) -> list[int]:
        reply = self._reply(request)
        return self._model.encode(reply) if isinstance(reply, str) else [*reply]

    def _cut(self, words: list[int], limit: int, *, ignore_eos: bool) -> tuple[Sequence[int], str]:
        """Return at most `limit` tokens, and why they end."""
        if ignore_eos:
            words = words or [self._model.eos_token_id]
            times = -(-limit // len(words))
            return (words * times)[:limit], "length"
        if len(words) >= limit:
            return words[:limit], "length"
        return [*words, self._model.eos_token_id], "stop"

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens == 0:
            raise InvalidRequestError("prompt: must not be empty", param="prompt")
        if num_tokens > self._max_model_len:
            raise PromptTooLongError(
                f"This model's maximum context length is {self._max_model_len} tokens. However, "
                f"your prompt contains {num_tokens} input tokens, which exceeds this limit even "
                "without any output tokens. Please reduce the length of the input prompt.",
                param="input_tokens",
            )
        if num_tokens == self._max_model_len:
            raise PromptTooLongError("max_tokens must be at least 1, got 0.", param="max_tokens")


def _max_tokens(body: PromptBody) -> int | None:
    """Return the tokens that the client allows; None: as much as fits."""
    limit = body.default_answer_limit if body.answer_limit is None else body.answer_limit
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if limit is not None and limit < 1:
        raise InvalidRequestError(f"{name}: must be at least 1, got {limit}", param=name)
    return limit


def _refuse_unless(name: str, value: int | None, plain: int) -> None:
    if value is not None and value != plain:
        _refuse(name)


def _refuse(name: str) -> None:
    raise InvalidRequestError(f"{name}: not simulated, leave it out", param=name)
