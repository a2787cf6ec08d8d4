"""An engine answers a prompt's token ids as it answers its text.

`make fleet` compares 30 of the bodies, `make fleet-full` all of them, more than 300. Each is sent
to the engine as it is, and by a gateway that adds the ids; before both the engine's cache is
emptied, and nothing else is asked meanwhile, so that it computes the same in the same steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION, HI, Message, Request, user
from tests.engines.conftest import FULL, Say, serve
from tests.engines.engine import MODEL, RealEngine, wait_until_ready
from tests.engines.shaped import PERSON, WEATHER
from tests.engines.varied import completions as varied_completions
from tests.engines.varied import (
    field_chats,
    plain_chats,
    spread,
    templates,
    tool_chats,
)
from tests.golden.prompts.responses_rules import RULES

from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.tokens_once import why_text

RESPONSE, MESSAGES = "/v1/responses", "/v1/messages"

NUM_SPREAD = 30
MAX_TOKENS = 12

# Two answers to one text differ now and then, too: a stream's events have one token or two, and
# beams are computed in one step or two, as they come.
ATTEMPTS = 4

# What comes back anew with each answer.
_NEW = {"id", "created", "created_at", "completed_at", "call_id", "item_id", "request_id"}

# What clients ask beside a prompt, in turns: what the answer is made of, and how it is told.
_NAMED = {"type": "function", "function": {"name": "weather"}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 30},
    {"tools": [WEATHER], "tool_choice": _NAMED, "stream": True, "max_tokens": 30},
    {"tools": [WEATHER], "tool_choice": "auto"},
    {"response_format": _SCHEMA},
    {"chat_template_kwargs": {"enable_thinking": False}, "response_format": _SCHEMA},
    {"structured_outputs": {"regex": "(yes|no), [a-z]{3,9}"}},
    {"structured_outputs": {"choice": ["yes", "no"]}, "stream": True},
    {"logprobs": True, "top_logprobs": 3},
    {"n": 2, "stop": ["."], "include_stop_str_in_output": True},
    {"use_beam_search": True, "n": 2},
    {"include_reasoning": False, "min_tokens": 3},
    {"reasoning_effort": "low", "frequency_penalty": 1.0, "repetition_penalty": 1.2},
    {"skip_special_tokens": False, "return_tokens_as_token_ids": True, "logprobs": True},
    {"bad_words": ["the"], "logit_bias": {"28": -100}, "cache_salt": "tenant"},
)


def with_own_template(requests: Iterator[Request]) -> Iterator[Request]:
    """In the engine's: what brings one gets no ids."""
    for request in requests:
        kept = {name: value for name, value in request.body.items() if name != "chat_template"}
        yield Request(request.name, request.path, kept)


def responses() -> Iterator[Request]:
    """Those whose prompts the gateway makes."""
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"stream": True},
        {"text": {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}},
    )
    made = chain.from_iterable(of_rule for rule, of_rule in RULES.items() if rule != "engine")
    for i, body in enumerate(made):
        fields = {**body, **asked[i % len(asked)], "max_output_tokens": MAX_TOKENS}
        yield Request(f"response: {i}", RESPONSE, fields)


def bodies() -> list[Request]:
    """Chats, each of which asks something else of its answer; completions; responses."""
    chats = [*with_own_template(chain(plain_chats(), tool_chats(), field_chats()))]
    texts = [*varied_completions()]
    every = [
        *(_asking(ASKED[i % len(ASKED)], i, chat) for i, chat in enumerate(chats)),
        *(_asking(ASKED[(i + 5) % len(ASKED)], ~i, chat) for i, chat in enumerate(chats[:60])),
        *(_asking({"logprobs": 2, "stream": bool(i % 2)}, i, t) for i, t in enumerate(texts)),
        *responses(),
    ]
    return [request for request in every if carries_ids(request)]


def _asking(asked: dict[str, Any], number: int, request: Request) -> Request:
    body = {"max_tokens": MAX_TOKENS, **asked, **request.body}
    if "tools" in request.body and "tool_choice" not in request.body:
        body.pop("tool_choice", None)  # it may name none of these
    return Request(f"{request.name} ({number})", request.path, body)


def carries_ids(request: Request) -> bool:
    raw = json.dumps(request.body).encode()
    return why_text(PARSERS[request.path](raw)) is None


@pytest.fixture(scope="module")
def engine(
    vllm: Path,
    model_dir: Path,
    new_log: Callable[[str], Path],
    say: Say,
    template: Path,
) -> Iterator[RealEngine]:
    """With a template that writes tools and reasoning, and parsers of both."""
    flags = ("--reasoning-parser", "qwen3", "--chat-template", str(template))
    made = RealEngine(vllm, model_dir, new_log("engine-ids"), flags)
    try:
        made.start()
        wait_until_ready([made], say)
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "qwen3.jinja"
    file.write_text(templates()["Qwen3"])
    return file


@pytest.fixture(scope="module")
def gateway(
    engine: RealEngine, template: Path, new_log: Callable[[str], Path], tmp_path_factory: Any
) -> Iterator[str]:
    """Sends ids of every prompt, however short; asks the engine nothing of its own."""
    settings = tmp_path_factory.mktemp("settings") / "gateway.yaml"
    settings.write_text("tokens_once: 'on'\nprobe: {one_in: 0}\n")
    flags = ("--config", str(settings), "--chat-template", f"{MODEL}={template}")
    with serve([engine], new_log("gateway-ids"), *flags) as program:
        yield program.url


def asked(url: str, engine: RealEngine, request: Request) -> client.Answer:
    client.post(f"{engine.url}/reset_prefix_cache", {})
    greedy = {"temperature": 0, "seed": 1, "model": MODEL}
    return client.post(url + request.path, {**request.body, **greedy})


def plain(answer: client.Answer) -> Any:
    """What is said, without what is new in every answer."""
    if answer.raw.lstrip().startswith(b"{"):
        return without_new(answer.json)
    lines = [line[5:].strip() for line in answer.raw.splitlines() if line.startswith(b"data:")]
    return [without_new(json.loads(line)) for line in lines if line != b"[DONE]"]


def without_new(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_new(each) for name, each in value.items() if name not in _NEW}
    return [without_new(each) for each in value] if isinstance(value, list) else value


@pytest.mark.timeout(3600 if FULL else 900)
def test_answers_are_the_same(engine: RealEngine, gateway: str, say: Say) -> None:
    every = bodies()
    chosen = every if FULL else spread(every, NUM_SPREAD)
    differing, again, refused, answers = [], [], [], set()
    for request in chosen:
        for attempt in range(ATTEMPTS):
            as_text, as_ids = asked(engine.url, engine, request), asked(gateway, engine, request)
            is_same = (as_text.status, plain(as_text)) == (as_ids.status, plain(as_ids))
            if is_same:
                break
            again += [request.name] * (not attempt)
        if as_text.status == 400:
            refused.append(request.name)
        else:
            assert "tokens" in as_ids.headers.get("x-inferway-edited", ""), request
        if not is_same:
            differing.append((request, as_text.raw, as_ids.raw))
        answers.add(json.dumps(plain(as_text)))

    say(f"{len(chosen)} bodies, {len(differing)} differ, {len(answers)} different answers;")
    say(f"compared again: {again}; refused: {refused}")
    assert differing == []
    assert len(every) >= 320
    assert len({request.name for request in every}) == len(every)
    assert len(refused) <= len(chosen) // 10  # a refusal proves little, and so do few answers
    assert len(answers) > len(chosen) // 2


OTHER = {"prompt_token_ids": list(range(700, 740))}
HELLO: list[Message] = [user("Hello")]


@pytest.mark.parametrize(
    ("path", "fields", "is_read"),
    [
        (CHAT, {"messages": HELLO}, True),
        (CHAT, {"messages": HELLO, "echo": True}, False),
        (RESPONSE, {"input": "Hello"}, True),
        (MESSAGES, {"messages": HELLO}, True),
        (COMPLETION, {"prompt": "Hello"}, False),
    ],
)
def test_an_engine_reads_the_field_where_we_think(
    engine: RealEngine, path: str, fields: dict[str, Any], is_read: bool
) -> None:
    limit = "max_output_tokens" if path == RESPONSE else "max_tokens"
    body = {"model": MODEL, limit: 1, **fields, "kv_transfer_params": OTHER}

    usage = client.post(engine.url + path, body).json["usage"]

    # Anthropic's leaves out of `input_tokens` what is read from the cache, or new in it
    told = [n for name, n in usage.items() if name.endswith(("input_tokens", "prompt_tokens"))]
    tokens = sum(filter(None, told))
    assert (tokens == 40) is is_read


def test_what_asks_for_the_rendered_prompt_would_not_get_it(engine: RealEngine) -> None:
    body = {"model": MODEL, "messages": HI, "max_tokens": 1, "return_prompt_text": True}

    told = [
        client.post(engine.url + CHAT, {**body, **ids}).json["prompt_text"]
        for ids in ({}, {"kv_transfer_params": OTHER})
    ]

    assert "Hi" in told[0]
    assert told[1] is None


def test_ids_are_not_cut(engine: RealEngine) -> None:
    body = {"model": MODEL, "messages": HI, "max_tokens": 1, "truncate_prompt_tokens": 5}

    lengths = [
        client.post(engine.url + CHAT, {**body, **ids}).json["usage"]["prompt_tokens"]
        for ids in ({}, {"kv_transfer_params": OTHER})
    ]

    assert lengths == [5, 40]


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt_logprobs": 1}, {"chat_template": "{{ messages[0].content }} and then"}],
)
def test_what_stays_text_to_be_the_engine_s_own_word_would_be_the_same(
    engine: RealEngine, fields: dict[str, Any]
) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4, "temperature": 0, **fields}
    body["return_token_ids"] = True

    def told(**more: Any) -> Any:
        client.post(f"{engine.url}/reset_prefix_cache", {})
        return without_new(client.post(engine.url + CHAT, {**body, **more}).json)

    as_text = told()
    ids = {"prompt_token_ids": as_text["prompt_token_ids"]}

    assert told(kv_transfer_params=ids) == as_text
