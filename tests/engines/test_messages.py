"""Messages: the chats, ids and counts that we make of them are vLLM's own, and a conversation that
grows is matched as the engine reuses it.

`make fleet` draws 30 bodies, `make fleet-full` 200."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.engines import client
from tests.engines.conftest import FULL, serve
from tests.engines.engine import BLOCK_SIZE, MAX_MODEL_LEN, MODEL, RealEngine, wait_until_ready
from tests.engines.vllm_code import VllmCode
from tests.engines.waiting import wait_until
from tests.golden.prompts.messages_rules import OFF, RULES, call, drawn, result, said, text, user
from tests.prompts.messages import found_in, rendered
from tests.stored import Row, templates

from inferway.config import ModelSettings
from inferway.errors import InferwayError
from inferway.openai_api.requests import parse_messages
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import ServedModel

ROOT = Path(__file__).parents[2]
RECORDER = ROOT / "tests" / "golden" / "prompts" / "record_vllm_messages.py"
NUM_DRAWN = 200 if FULL else 12
RECORDER_SECONDS = 1200

# The template of Qwen 3, which takes system messages anywhere, and of Qwen 3.5, which does not.
TEMPLATES = {"keeps": "87a2728cb8dc9fe4", "merges": "a4aee8afcf2e0711"}
BODIES: list[Row] = [
    *(body for rule in RULES if rule not in ("images", "refused") for body in RULES[rule]),
    *drawn(NUM_DRAWN, seed=1),
]


@pytest.fixture(scope="module")
def recorded(
    vllm_code: VllmCode, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Row]:
    """What vLLM makes of drawn bodies, with all templates that are stored."""
    file = tmp_path_factory.mktemp("recorded") / "messages.jsonl.gz"
    vllm_code.run(
        [RECORDER.name, str(model_dir), str(NUM_DRAWN), str(file)],
        cwd=RECORDER.parent,
        seconds=RECORDER_SECONDS,
    )
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.timeout(2 * RECORDER_SECONDS)
def test_drawn_bodies_give_vllms_prompts_with_all_templates(recorded: list[Row]) -> None:
    meta, *cases = recorded
    tokens = meta["meta"]["special_tokens"]
    num_equal, misses, wrong, untold = 0, [], [], []
    for row in templates():
        if row["id"] not in meta["meta"]["found"]:
            continue
        # on a busy machine any rendering may take longer than it may in the gateway
        template = ChatTemplate(row["chat_template"], bounded=False)
        theirs = tuple(meta["meta"]["found"][row["id"]])
        ours = found_in(template, tokens)
        if ours[0] is None:  # it is not rendered in this process: such messages go by load
            untold.append(row["id"])
            continue
        if ours != theirs:
            wrong.append((row["id"], ours, theirs))
            continue
        for case in cases:
            expected = case["expected"].get(row["id"])
            if rendered(case["body"], template, tokens, ours) == expected:
                num_equal += expected is not None
            elif not template.reads_clock:
                misses.append((row["id"], case["body"]))

    assert (misses, wrong) == ([], [])
    assert len(untold) <= 1
    assert num_equal > 150 * NUM_DRAWN


class Engine(NamedTuple):
    real: RealEngine
    template: Path


@pytest.fixture(scope="module", params=TEMPLATES)
def engine(
    request: pytest.FixtureRequest,
    vllm: Path,
    model_dir: Path,
    new_log: Callable[[str], Path],
    say: Callable[[str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    """One that has the template of a model of agents."""
    (source,) = [r["chat_template"] for r in templates() if r["id"] == TEMPLATES[request.param]]
    template = tmp_path_factory.mktemp("template") / "chat_template.jinja"
    template.write_text(source)
    flags = ("--enable-scale-out", "--chat-template", str(template))
    made = RealEngine(vllm, model_dir, new_log(f"messages-{request.param}"), flags)
    try:
        made.start()
        wait_until_ready([made], say)
        yield Engine(made, template)
    finally:
        made.kill()


@pytest.fixture(scope="module")
def ours(engine: Engine, model_dir: Path) -> list[list[int] | None]:
    """The ids that we make of `BODIES`; None if we make none."""
    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(model_dir)))
    flags = ModelSettings(chat_template=str(engine.template))
    model = ServedModel(MODEL, ModelPrompts(renderer, key, MAX_MODEL_LEN, flags=flags))

    async def ids(body: Row) -> list[int] | None:
        try:
            tokenized = await parse_messages(msgspec.json.encode(body)).tokenized_by(model)
        except InferwayError:
            return None
        return [int(id) for id in tokenized.token_ids[0]]

    async def all_ids() -> list[list[int] | None]:
        return [await ids(body) for body in BODIES]

    try:
        return asyncio.run(all_ids())
    finally:
        renderer.close()


def asked(engine: Engine, path: str, body: Row) -> Any:
    """The answer's JSON, or None if the engine refuses it."""
    answer = client.post(f"{engine.real.url}{path}", {**body, "model": MODEL, "stream": False})
    return answer.json if answer.status == 200 else None


def test_ids_are_those_the_engine_renders(engine: Engine, ours: list[list[int] | None]) -> None:
    num_equal, differing = 0, []
    for body, ids in zip(BODIES, ours, strict=True):
        if body.get("thinking") == OFF:  # the path that renders does not look for the effort
            continue
        found = asked(engine, "/v1/messages/render", body)
        if ids == (found and found["token_ids"]):
            num_equal += ids is not None
        else:
            differing.append((body, ids, found))

    assert differing == []
    assert num_equal >= len(BODIES) * 2 // 3


def test_counts_are_those_of_the_engine(engine: Engine, ours: list[list[int] | None]) -> None:
    differing = []
    for body, ids in zip(BODIES, ours, strict=True):
        found = asked(engine, "/v1/messages/count_tokens", body)
        if (ids and len(ids)) != (found and found["input_tokens"]):
            differing.append((body, ids and len(ids), found))

    assert differing == []


def test_so_is_the_usage_of_an_answer(engine: Engine, ours: list[list[int] | None]) -> None:
    """With every third body, because the engine computes."""
    differing, num_asked = [], 0
    for body, ids in list(zip(BODIES, ours, strict=True))[::3]:
        if ids is None or (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            continue
        usage = asked(engine, "/v1/messages", {**body, "max_tokens": 1, "thinking": off(body)})[
            "usage"
        ]
        num_asked += 1
        if prompt_tokens(usage) != len(ids):
            differing.append((body, len(ids), usage))

    assert differing == []
    assert num_asked > len(BODIES) // 5


def prompt_tokens(usage: Row) -> int:
    """Anthropic's input_tokens are those that were neither in the cache nor put there."""
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(part) or 0 for part in parts)


def off(body: Row) -> Row | None:
    """A budget of thought must be smaller than the answer's."""
    return OFF if body.get("thinking") == OFF else None


LONG = "the rain in spain falls mainly on the plain " * 20


def matched_at(gateway: str, body: Row) -> int:
    """Blocks of its prompt that the gateway believes the engine to hold; it is answered, too."""
    return int(client.post(f"{gateway}/v1/messages", body).headers["x-inferway-matched-blocks"])


def test_a_growing_conversation_is_matched_as_the_engine_reuses_it(
    engine: Engine, new_log: Callable[[str], Path], tmp_path: Path
) -> None:
    config = tmp_path / "inferway.yaml"
    config.write_text(json.dumps({"models": {MODEL: {"chat_template": str(engine.template)}}}))
    messages: list[Row] = [user([text(LONG), text("begin")])]
    seen = []
    with serve([engine.real], new_log("gateway-of-messages"), "--config", str(config)) as program:
        for turn in range(4):
            billing = f"x-anthropic-billing-header: cch={turn};"
            body = {"model": MODEL, "max_tokens": 1, "system": [text(billing), text(LONG)]}
            body["messages"] = list(messages)
            answer = client.post(f"{program.url}/v1/messages", body)
            assert answer.status == 200, answer.raw
            usage = answer.json["usage"]
            cached = usage.get("cache_read_input_tokens", 0)
            blocks = prompt_tokens(usage) // BLOCK_SIZE
            seen.append((int(answer.headers["x-inferway-matched-blocks"]), cached // BLOCK_SIZE))
            ask = partial(matched_at, program.url, body)
            wait_until(partial(holds, ask, blocks), f"{blocks} blocks", ask, seconds=10)
            id = f"toolu_{turn}"
            messages += [
                said([text("I look."), call("f", id, x=LONG)]),
                user([result(LONG, id)]),
            ]

    assert seen[0] == (0, 0)
    assert [matched for matched, _ in seen] == [cached for _, cached in seen]
    assert all(cached > 5 for _, cached in seen[1:])


def holds(ask: Callable[[], int], blocks: int) -> bool:
    return ask() >= blocks
