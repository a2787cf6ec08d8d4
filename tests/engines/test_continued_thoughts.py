"""A stream of a model that reasons goes on at another engine, in its thought and behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION, user
from tests.engines.conftest import ROOT, Say, serve
from tests.engines.continued import events_of
from tests.engines.engine import MODEL, RealEngine, wait_until_ready
from tokenizers import Tokenizer

NUM_TOKENS = 160
PENALTY = {"repetition_penalty": 1.3}  # else the model soon says the same words again and again
BODY = {
    **{"model": MODEL, "messages": [user("Tell me a long story about a lighthouse.")]},
    **{"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True},
    "stream_options": {"include_usage": True},
    **PENALTY,
}
ENDS_AT = range(40, 110)  # tokens of the thought
FLAGS = (
    *("--reasoning-parser-plugin", str(ROOT / "tests" / "engines" / "steering.py")),
    *("--reasoning-parser", "file-sep"),
)


@dataclass(frozen=True)
class Thinking:
    """Two engines that take for a thought what the model says before the token `end`."""

    gateway: str
    engines: Sequence[RealEngine]
    tokenizer: Tokenizer
    prompt: list[int]
    ids: list[int]  # of an answer that nobody has disturbed
    end: int


def said(lines: Sequence[bytes], name: str) -> str:
    return "".join(
        choice["delta"].get(name) or "" for event in events_of(lines) for choice in event["choices"]
    )


@pytest.fixture(scope="module")
def thinking(
    vllm: Path,
    whole_model: Path,  # the small one says the same word again and again
    tmp_path_factory: pytest.TempPathFactory,
    new_log: Callable[[str], Path],
    say: Say,
) -> Iterator[Thinking]:
    tokenizer = Tokenizer.from_file(str(whole_model / "tokenizer.json"))
    end_file = tmp_path_factory.mktemp("end") / "token"
    end_file.write_text("<file_sep>")
    variables = {"END_OF_THOUGHT": str(end_file)}
    engines = [
        RealEngine(vllm, whole_model, new_log(f"thinker-{i}"), FLAGS, variables) for i in range(2)
    ]
    try:
        for engine in engines:
            engine.start()
        wait_until_ready(engines, say)
        prompt, ids = answer_of(engines[0].url)
        end = next(id for id in ids[ENDS_AT.start : ENDS_AT.stop] if is_new(id, ids, prompt))
        end_file.write_text(tokenizer.id_to_token(end) or "")
        with serve(engines, new_log("gateway-thoughts")) as program:
            yield Thinking(program.url, engines, tokenizer, prompt, ids, end)
    finally:
        for engine in engines:
            engine.kill()


def answer_of(url: str) -> tuple[list[int], list[int]]:
    """The ids of the prompt and of the answer."""
    with client.open_stream(url + CHAT, {**BODY, "return_token_ids": True}) as stream:
        events = events_of([*stream])
    ids = [id for event in events for each in event["choices"] for id in each.get("token_ids", ())]
    return events[0]["prompt_token_ids"], ids


def is_new(id: int, ids: Sequence[int], prompt: Sequence[int]) -> bool:
    """Whether a token stands nowhere before ENDS_AT."""
    return id not in prompt and id not in ids[: ENDS_AT.start]


@pytest.mark.parametrize(("name", "after"), [("reasoning", 20), ("content", 20)])
def test_another_engine_goes_on(thinking: Thinking, name: str, after: int) -> None:
    gateway = thinking.gateway
    lines: list[bytes] = []
    with client.open_stream(gateway + CHAT, BODY) as stream:
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
    kept = int(seam.rpartition(b"=")[2])
    before = lines[: lines.index(seam)]
    thought, text = rest_of(thinking, survivor, kept)
    assert bool(thought) == (name == "reasoning")
    assert said(lines, "reasoning") == said(before, "reasoning") + thought
    assert said(lines, "content") == said(before, "content") + text
    usage = events_of(lines)[-1]["usage"]
    assert usage["completion_tokens"] == NUM_TOKENS
    assert usage["prompt_tokens"] == len(thinking.prompt)
    assert not usage["completion_tokens_details"]
    assert lines[-1] == b"data: [DONE]"


def rest_of(thinking: Thinking, engine: RealEngine, kept: int) -> tuple[str, str]:
    """What the engine thinks and says behind the first `kept` tokens of the answer."""
    start = thinking.ids[:kept]
    body = {"model": MODEL, "prompt": [*thinking.prompt, *start], "temperature": 0, **PENALTY}
    body |= {"max_tokens": NUM_TOKENS - kept, "ignore_eos": True, "return_token_ids": True}
    ids = client.post(engine.url + COMPLETION, body).json["choices"][0]["token_ids"]
    at = 0 if thinking.end in start else ids.index(thinking.end)
    text = ids if thinking.end in start else ids[at + 1 :]
    return thinking.tokenizer.decode(ids[:at]), thinking.tokenizer.decode(text)
