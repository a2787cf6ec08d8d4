"""What breaks a conversation's cache is told by hashes of its turns, and no text is kept."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import msgspec
import numpy as np
import pytest

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.protocol import MatchResult
from inferway.model import Decision, Endpoint, Prompt, Reason
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.llm_request import LLMRequest
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.scheduling.idle import idle
from inferway.telemetry.conversations import (
    GONE_AFTER,
    LOOKS_A_SECOND,
    MOST_CONVERSATIONS,
    Conversations,
)

BLOCK = 16
MODEL = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "not in this test"))
RULES = "\n".join(f"Rule {i}: be kind to everybody you meet, and say so." for i in range(20))
TODAY = date(2026, 11, 25)
HASHED = "x-anthropic-billing-header: cc_version=2.1; cch="


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def chat(turns: int, system: str = RULES, names: str = "ab", **fields: Any) -> dict[str, Any]:
    said = [
        {"role": role, "content": f"{role} {turn} " * 20}
        for turn in range(turns)
        for role in ("user", "assistant")
    ]
    tools = [tool(name) for name in names]
    return {
        "messages": [{"role": "system", "content": system}, *said[:-1]],
        "tools": tools,
    } | fields


class Gateway:
    """Routes bodies whose tokens are the bytes of their parts, in a template's order."""

    def __init__(self, block_size: int = BLOCK) -> None:
        self.block_size = block_size
        self.conversations = Conversations(today=lambda: TODAY)
        self.now = 0.0

    def routes(
        self, body: dict[str, Any], path: str = "/v1/chat/completions", agent: str = "claude-cli/2"
    ) -> None:
        names = ("instructions", "system", "tools", "messages", "input")
        seen = msgspec.json.encode([body.get(name) for name in names])
        self.routes_raw(msgspec.json.encode({"model": "m", **body}), seen, path, agent)

    def routes_raw(
        self,
        raw: bytes,
        seen: bytes | None = None,
        path: str = "/v1/chat/completions",
        agent: str = "claude-cli/2",
    ) -> None:
        """`seen`: what the engine makes tokens of; None: all of the body."""
        self.now += 1.0
        request = LLMRequest(
            request_id="r",
            target_model="m",
            body=PARSERS[path](raw),
            raw=raw,
            headers=[(b"user-agent", agent.encode())],
        )
        ids = np.frombuffer(raw if seen is None else seen, np.uint8).astype(np.uint32)
        prompt = Prompt(ids, BlockHasher(self.block_size).keys(ids))
        candidates = idle([Endpoint("e0", "http://e0", 0)], self.block_size)
        candidates.now = self.now
        known = {self.block_size: [Matched(prompt, MatchResult())]}
        decision = Decision((), Reason.KV_AWARE)
        self.conversations.on_request(Routed(request, MODEL, known, decision, candidates), 0.0)

    @property
    def broken(self) -> dict[tuple[str, str], int]:
        return dict(self.conversations.broken)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_a_conversation_that_grows_is_kept(gateway: Gateway) -> None:
    for turns in range(1, 6):
        gateway.routes(chat(turns))

    told = gateway.conversations.told()
    assert (told["requests"], told["turns"], told["kept"], told["broken"]) == (5, 4, 4, [])
    assert told["with_tools"] == 5


@pytest.mark.parametrize(
    ("cause", "first", "then"),
    [
        (
            "hash",
            {"system": f"{HASHED[2:]}1a2b3\n{RULES}"},
            {"system": f"{HASHED[2:]}9z8y7\n{RULES}"},
        ),
        (
            "hash",
            {"system": f"Session 4f2a0c8e91bd77\n{RULES}"},
            {"system": f"Session 5f2a0c8e91bd77\n{RULES}"},
        ),
        ("time", {"system": f"It is 12:31:05.\n{RULES}"}, {"system": f"It is 12:31:09.\n{RULES}"}),
        ("time", {"system": f"On Nov 24.\n{RULES}"}, {"system": f"On Nov 25.\n{RULES}"}),
        ("system", {"system": f"You are Ann.\n{RULES}"}, {"system": f"You are Bob.\n{RULES}"}),
        ("system", {"system": RULES}, {"system": RULES[: len(RULES) // 2]}),
        ("tools-order", {"names": "abc"}, {"names": "cab"}),
        ("tools", {"names": "ab"}, {"names": "abc"}),
    ],
)
def test_the_first_thing_that_differs_is_the_cause(
    gateway: Gateway, cause: str, first: dict[str, str], then: dict[str, str]
) -> None:
    before, after = chat(3, **first), chat(4, **then)
    before["system"], after["system"] = (each["messages"][0]["content"] for each in (before, after))

    gateway.routes(before)
    gateway.routes(after)

    assert (gateway.conversations.turns, gateway.broken) == (1, {(cause, "claude-code"): 1})


def test_what_was_said_before_may_have_changed(gateway: Gateway) -> None:
    after = chat(6)
    after["messages"][2]["content"] = "shortened"
    gateway.routes(chat(5))
    gateway.routes(after)

    assert gateway.broken == {("history", "claude-code"): 1}


def test_system_messages_among_the_others_are_a_cause_where_they_move_the_rest(
    gateway: Gateway,
) -> None:
    after = chat(6)
    after["messages"].insert(1, {"role": "system", "content": "a reminder"})
    gateway.routes(chat(5))
    gateway.routes(after)

    assert gateway.broken == {("inline-system", "claude-code"): 1}
    assert gateway.conversations.told()["with_inline_system"] == 1


def test_a_first_block_that_differs_is_told_of(gateway: Gateway) -> None:
    for turns in (3, 4):
        system = f"At 0{turns}:00 {RULES}"
        gateway.routes({**chat(turns, system=system), "system": system})

    (broken,) = gateway.conversations.told()["broken"]
    assert broken == {"cause": "time", "client": "claude-code", "turns": 1, "in_first_block": 1}


def test_a_header_that_engines_drop_is_no_line_of_the_prompt(gateway: Gateway) -> None:
    """It changes here all the same, so that something else must be named."""
    for turns in (3, 4):
        gateway.routes(chat(turns, system=f"{HASHED}{turns};\n{RULES}"))

    assert gateway.broken == {("history", "claude-code"): 1}


def test_items_of_responses_are_followed_too(gateway: Gateway) -> None:
    for turns in (3, 4):
        items = chat(turns)["messages"][1:]
        body = {"instructions": f"{turns:012x}\n{RULES}", "input": items}
        gateway.routes(body, "/v1/responses", "codex_cli_rs/0.9 (Linux)")

    assert gateway.broken == {("hash", "codex"): 1}


def test_messages_are_followed_too(gateway: Gateway) -> None:
    """What engines drop of their system prompt changes, and so does a line that they do not."""
    for turns in (3, 4):
        blocks = [f"{HASHED}{turns};", f"It is 12:0{turns}.\n{RULES}"]
        system = [{"type": "text", "text": text} for text in blocks]
        gateway.routes({"system": system, "messages": chat(turns)["messages"][1:]}, "/v1/messages")

    assert gateway.broken == {("time", "claude-code"): 1}


def test_others_with_the_same_first_words_are_no_next_turns(gateway: Gateway) -> None:
    gateway.routes(chat(3, system=RULES))
    gateway.routes(chat(3, system=RULES.upper()))  # as long: a retry, or somebody else
    gateway.routes(chat(2))
    gateway.routes({"messages": [{"role": "system", "content": RULES}]})
    gateway.routes({"prompt": "text"}, "/v1/completions")

    assert (gateway.conversations.turns, gateway.conversations.looked_at) == (0, 3)


def test_clients_that_say_the_same_are_not_mixed_up(gateway: Gateway) -> None:
    for turns in (3, 4):
        gateway.routes(chat(turns), agent="codex_cli_rs/0.9")
        gateway.routes(chat(turns, names="xyz", system=RULES.upper()), agent="claude-cli/2")

    assert (gateway.conversations.kept, gateway.broken) == (2, {})


def test_short_prompts_are_no_evidence() -> None:
    gateway = Gateway(block_size=64)

    def say(text: str, turns: int) -> None:
        said = [{"role": "user", "content": "hi"}] * turns
        gateway.routes({"messages": [{"role": "system", "content": text}, *said]})

    say("a", 1)
    say("b", 2)

    assert gateway.conversations.turns == 0


def test_a_prompt_without_a_full_block_is_looked_at_too() -> None:
    gateway = Gateway(block_size=512)
    for turns in (1, 2):
        gateway.routes({"messages": [{"role": "user", "content": "hi"}] * turns})

    told = gateway.conversations.told()
    assert (told["requests"], told["turns"]) == (2, 0)


def test_tools_may_have_what_no_json_encoder_takes(gateway: Gateway) -> None:
    odd = {"type": "function", "function": {"name": "\ud800", "parameters": {"maximum": 2**70}}}
    raw = json.dumps(chat(1) | {"model": "m", "tools": [odd]}).encode()

    gateway.routes_raw(raw)

    assert gateway.conversations.with_tools == 1


@pytest.mark.parametrize(
    ("text", "dated"),
    [
        ("Today is 2026-11-25.", 1),
        ("Today is November 25, 2026.", 1),
        ("Today is 25 Nov 2026.", 1),
        ("Knowledge until 2026-06-01.", 0),
        ("far behind " * 40 + "2026-11-25", 0),
    ],
)
def test_todays_date_near_the_start_is_noticed(gateway: Gateway, text: str, dated: int) -> None:
    gateway.routes(chat(1, system=f"{text}\n{RULES}"))

    assert gateway.conversations.dated == dated


def test_only_so_many_are_looked_at_in_a_second(gateway: Gateway) -> None:
    for i in range(3 * LOOKS_A_SECOND):
        gateway.now = -1.0  # the same second for all
        gateway.routes({"messages": [{"role": "user", "content": f"conversation {i}"}]})

    assert gateway.conversations.looked_at == LOOKS_A_SECOND


def test_only_so_many_are_followed_until_one_has_gone(gateway: Gateway) -> None:
    def begin(name: str) -> int:
        gateway.routes({"messages": [{"role": "user", "content": name}]})
        return gateway.conversations.looked_at

    for i in range(MOST_CONVERSATIONS):
        begin(str(i))
    full = begin("one more")
    gateway.now += GONE_AFTER

    assert (full, begin("again")) == (MOST_CONVERSATIONS, MOST_CONVERSATIONS + 1)


def test_no_text_of_a_prompt_is_kept(gateway: Gateway) -> None:
    for turns in (3, 4):
        gateway.routes(chat(turns, system=f"a secret {turns}\n{RULES}"))

    kept = repr(gateway.conversations)
    assert "claude-code" in kept
    assert not [word for word in ("secret", "Rule", "user 0", "object") if word in kept]
