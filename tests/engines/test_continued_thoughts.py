"""A stream of a model that reasons goes on at another engine, in its thought and behind it.

Which token a model prefers may hang on the last bits of its numbers, and a prompt is computed in
other steps than an answer. So the engines are told what to say, token by token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import anthropic
import pytest
from tests.engines import client
from tests.engines.chats import CHAT, user
from tests.engines.conftest import FULL, ROOT, Say, serve
from tests.engines.continued import events_of
from tests.engines.engine import MODEL, RealEngine, wait_until_ready
from tests.engines.waiting import wait_until
from tests.thinking_model import thinking_smollm2
from tokenizers import Tokenizer

THOUGHT = (
    "They want a long story about a lighthouse. Where may it stand? On a cliff in Brittany, above"
    " a café whose owner, Zoë, knows each ship by its horn 🚢. It should begin at dusk, when the"
    " lamp is lit, and end as the fog lifts; nobody needs to drown. What about the keeper's cat?"
    " Cats are always welcome 🐈, so let me have one, old and grey, that answers to no name at all."
)
TEXT = (
    "\n\nThe lamp of Kéréon had burned for ninety years before anybody asked who paid for the oil."
    " It was Zoë who did the sums, at the back of the café, between two ships 🚢 and the evening"
    ' rain. "Somebody does," she told the cat 🐈, which looked at the sea as though it owed'
    " something. Then the fog came in, slowly, and all that was left of the world was the light,"
    " which went round once in eleven seconds, and the horn of a trawler that was not late yet."
)
BODY = {
    **{"model": MODEL, "messages": [user("Tell me a long story about a lighthouse.")]},
    **{"temperature": 0, "ignore_eos": True, "stream": True},
    "stream_options": {"include_usage": True},
}
FLAGS = (
    *("--logits-processors", "tests.engines.steering:Reciting"),
    *("--reasoning-parser", "deepseek_r1"),
)


@dataclass(frozen=True)
class Thinking:
    """Two engines that say THOUGHT and TEXT, in so many tokens."""

    gateway: str
    engines: Sequence[RealEngine]
    num_prompt_tokens: int
    num_tokens: int


def said(lines: Sequence[bytes], name: str) -> str:
    return "".join(
        choice["delta"].get(name) or "" for event in events_of(lines) for choice in event["choices"]
    )


@pytest.fixture(scope="module")
def thinking(
    vllm: Path,
    whole_model: Path,  # slow enough to be drained while it answers
    tmp_path_factory: pytest.TempPathFactory,
    new_log: Callable[[str], Path],
    say: Say,
) -> Iterator[Thinking]:
    model = thinking_smollm2(tmp_path_factory.mktemp("thinker") / "model", whole_model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = tokenizer.encode(f"<think>{THOUGHT}</think>{TEXT}").ids
    recited = tmp_path_factory.mktemp("recited") / "ids.json"
    recited.write_text(json.dumps({"start": 0, "ids": []}))
    variables = {"RECITED": str(recited), "PYTHONPATH": str(ROOT)}
    engines = [RealEngine(vllm, model, new_log(f"thinker-{i}"), FLAGS, variables) for i in range(2)]
    try:
        for engine in engines:
            engine.start()
        wait_until_ready(engines, say)
        asked = {"model": MODEL, "messages": BODY["messages"]}
        start = client.post(f"{engines[0].url}/tokenize", asked).json["count"]
        recited.write_text(json.dumps({"start": start, "ids": ids}))
        with serve(engines, new_log("gateway-thoughts")) as program:
            yield Thinking(program.url, engines, start, len(ids))
    finally:
        for engine in engines:
            engine.kill()


@pytest.mark.parametrize(
    ("name", "after"),
    [("reasoning", 20), ("content", 45), *([("reasoning", 45), ("content", 20)] if FULL else [])],
)
def test_another_engine_goes_on(thinking: Thinking, name: str, after: int) -> None:
    gateway = thinking.gateway
    lines: list[bytes] = []
    with client.open_stream(gateway + CHAT, {**BODY, "max_tokens": thinking.num_tokens}) as stream:
        loser = stream.headers["x-inferway-engine"]
        drain = f"{gateway}/admin/engines/{loser}"
        count = 0
        while count < after and (line := stream.readline().strip()):
            lines.append(line)
            count += b'"%b":"' % name.encode() in line
            stream.readline()  # an empty one
        client.post(f"{drain}/drain?seconds=0&streams_after=0", b"")
        lines += [line.strip() for line in stream if line.strip()]
    client.post(f"{drain}/resume", b"")

    (seam,) = [line for line in lines if line.startswith(b": x-inferway-continued")]
    (survivor,) = [engine for engine in thinking.engines if engine.name != loser]
    assert b"engine=%b " % survivor.name.encode() in seam
    before = lines[: lines.index(seam)]
    assert said(before, name) != (THOUGHT if name == "reasoning" else TEXT)
    assert bool(said(before, "content")) == (name == "content")
    assert said(lines, "reasoning") == THOUGHT
    assert said(lines, "content") == TEXT
    usage = events_of(lines)[-1]["usage"]
    assert usage["completion_tokens"] == thinking.num_tokens
    assert usage["prompt_tokens"] == thinking.num_prompt_tokens
    assert not usage["completion_tokens_details"]
    assert lines[-1] == b"data: [DONE]"


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        *(("thinking", 20), ("text", 45)),
        *([("thinking", 1), ("thinking", 60), ("text", 1)] if FULL else []),
    ],
)
def test_another_engine_goes_on_with_a_message_of_claude_code(
    thinking: Thinking, kind: str, after: int
) -> None:
    gateway, losers = thinking.gateway, list[str]()
    wait_until(lambda: are_proven(thinking), "the engines make our tokens of messages")
    with (
        anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0) as api,
        api.messages.stream(
            model=MODEL,
            max_tokens=thinking.num_tokens,
            messages=BODY["messages"],  # type: ignore[arg-type]
            thinking={"type": "adaptive"},
            output_config={"effort": "high"},
            extra_body={"context_management": {"edits": []}, "temperature": 0},
        ) as stream,
    ):
        count = 0
        for event in stream:
            count += event.type == kind
            if count == after and not losers:
                losers.append(stream.response.headers["x-inferway-engine"])
                drain = f"{gateway}/admin/engines/{losers[0]}"
                client.post(f"{drain}/drain?seconds=0&streams_after=0", b"")
        message = stream.get_final_message()
    client.post(f"{drain}/resume", b"")

    said = {block.type: getattr(block, block.type) for block in message.content}
    assert said == {"thinking": THOUGHT, "text": TEXT}
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    assert usage.input_tokens + cached == thinking.num_prompt_tokens
    assert usage.output_tokens == thinking.num_tokens
    log = client.get(f"{gateway}/admin/requests?limit=1").json["requests"][0]
    assert log["continued"] == 1


def are_proven(thinking: Thinking) -> bool:
    page = client.get(f"{thinking.gateway}/metrics").raw.decode()
    proven = [line for line in page.splitlines() if line.startswith("inferway_engine_proof{")]
    agrees = [line for line in proven if 'state="agrees"' in line and line.endswith(" 1.0")]
    return len(agrees) >= len(thinking.engines)
