"""A stream is cut anywhere, and another engine goes on: the client's text is that of one engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.errors import SeamError
from inferway.openai_api.requests import parse_chat, parse_completion, parse_responses
from inferway.openai_api.sent_stream import Cut, SentStream, Stops
from inferway.openai_api.stream_rest import (
    RestEvents,
    rest_body,
    stops_of,
    why_not,
    why_not_at_once,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = [5, 6, 7]
JsonObject = dict[str, object]


def event(data: object) -> bytes:
    return (
        b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
    )


class FakeEngine:
    """Streams a fixed text as vLLM does: half characters and what may be the start of a stop
    string wait. Token n of the text has the id n; `number` of them are in the prompt."""

    def __init__(self, tokens: Sequence[bytes], path: str, stop: str, *, shows_stop: bool) -> None:
        self._tokens = tokens
        self._is_chat = path == CHAT
        self._stop = stop
        self._shows_stop = shows_stop

    def events(self, number: int, sizes: Iterator[int], *, with_ids: bool) -> Iterator[bytes]:
        """`sizes`: how many tokens each event has."""
        prompt = [*PROMPT, *range(number)]
        told = {"id": f"from-{number}", "created": 10 + number, "model": "m"}
        if self._is_chat:
            choice: JsonObject = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            choice |= {"logprobs": None, "finish_reason": None}
            ids = prompt if with_ids else None
            yield event({**told, "choices": [choice], "prompt_token_ids": ids, "prompt_text": None})
        made, text, sent, is_first = 0, "", 0, True
        lag = len(self._stop) - 1 if self._stop and not self._shows_stop else 0
        while number + made < len(self._tokens):
            size = min(next(sizes), len(self._tokens) - number - made)
            begun, finish = number + made, None
            for _ in range(size):
                made += 1
                before = len(text)
                raw = b"".join(self._tokens[number : number + made])
                with_open = raw.decode(errors="replace")
                if not with_open.endswith("\N{REPLACEMENT CHARACTER}"):
                    text = with_open
                at = text.find(self._stop, max(0, before - len(self._stop) + 1))
                if self._stop and at >= 0:
                    text = text[: at + len(self._stop) * self._shows_stop]
                    finish = "stop"
                    break
            if number + made == len(self._tokens):
                finish = finish or "length"
            upto = len(text) if finish else max(sent, len(text) - lag)
            ids = list(range(begun, number + made)) if with_ids else None
            yield event(
                {**told, "choices": [self._choice(text[sent:upto], finish, ids, prompt * is_first)]}
            )
            sent, is_first = upto, False
            if finish is not None:
                break
        usage = {"prompt_tokens": len(prompt), "completion_tokens": made}
        yield event({**told, "choices": [], "usage": {**usage, "total_tokens": len(prompt) + made}})
        yield b"data: [DONE]\n\n"

    def _choice(
        self, text: str, finish: str | None, ids: object, prompt: Sequence[int]
    ) -> JsonObject:
        if self._is_chat:
            choice: JsonObject = {"index": 0, "delta": {"content": text}}
            choice |= {"logprobs": None, "finish_reason": finish}
            if finish is not None:
                choice["stop_reason"] = None
        else:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
            choice |= {"stop_reason": None}
            choice["prompt_token_ids"] = (prompt or None) if ids is not None else None
        choice["token_ids"] = ids
        return choice


def text_of(stream: bytes) -> tuple[str, str | None, Any, set[tuple[Any, ...]]]:
    """The text, why it ended, its usage, and what events are called."""
    text, finish, usage = "", None, None
    names: set[tuple[Any, ...]] = set()
    for line in stream.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line[6:])
        names.add((data["id"], data["created"], data["model"]))
        usage = data.get("usage") or usage
        for choice in data["choices"]:
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            finish = choice["finish_reason"] or finish
    return text, finish, usage, names


TEXTS = st.text(st.sampled_from("ab \né東🚀"), min_size=1, max_size=60)


@settings(max_examples=600)
@given(
    text=TEXTS,
    stop=st.sampled_from(["", "", "ab", "aab", "🚀b", "é東é"]),
    shows_stop=st.booleans(),
    path=st.sampled_from([CHAT, COMPLETIONS]),
    draw=st.data(),
)
def test_text_end_and_usage_are_those_of_one_engine(
    text: str, stop: str, shows_stop: bool, path: str, draw: st.DataObject
) -> None:
    raw = text.encode()
    borders = sorted(draw.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=40)))
    tokens = [raw[a:b] for a, b in zip([0, *borders], [*borders, len(raw)], strict=True) if a < b]
    engine = FakeEngine(tokens, path, stop, shows_stop=shows_stop)
    sizes = st.integers(1, 3)

    def drawn() -> Iterator[int]:
        while True:
            yield draw.draw(sizes)

    whole = b"".join(engine.events(0, iter(drawn()), with_ids=False))
    sent, passed, losses = SentStream(path), b"", draw.draw(st.integers(1, 3))
    events = list(engine.events(0, drawn(), with_ids=True))
    seams: list[RestEvents] = []
    while losses:
        losses -= 1
        lost_at = draw.draw(st.integers(1, len(events)))
        for each in events[:lost_at]:
            passed += through(seams, sent.feed(each))
        fields = {"stop": stop or None, "include_stop_str_in_output": shows_stop}
        cut = sent.cut(stops_of(fields))
        if cut is None:
            assert sent.is_finished or lost_at == 1
            for each in events[lost_at:]:
                passed += through(seams, sent.feed(each))
            break
        at = len(json.loads(b"[%b]" % cut.prompt_ids)) - len(PROMPT) + cut.num_ids
        seams.insert(0, RestEvents(cut))
        sent = SentStream(path)
        events = list(engine.events(at, drawn(), with_ids=True))
    else:
        for each in events:
            passed += through(seams, sent.feed(each))

    told, as_told = text_of(passed), text_of(whole)
    assert told[:2] == as_told[:2]
    assert told[3] == {("from-0", 10, "m")}
    assert as_told[2] is not None
    usage = told[2]
    # how many tokens came with the last event is drawn: vLLM counts those behind a stop string
    assert usage["prompt_tokens"] == len(PROMPT)
    assert usage["total_tokens"] == len(PROMPT) + usage["completion_tokens"]
    assert passed.endswith(b"data: [DONE]\n\n")
    if not stop:
        assert usage == as_told[2]


def through(seams: Sequence[RestEvents], events: bytes) -> bytes:
    for seam in seams:
        events = seam.feed(events)
    return events


@settings(max_examples=300)
@given(
    said=st.lists(st.text(st.sampled_from("ab é東🚀<"), min_size=1, max_size=3), max_size=20),
    num_earlier=st.sampled_from([0, 200]),
    kept_back=st.integers(0, 6),
)
def test_where_text_is_kept_back_by_other_rules_the_place_is_found_by_the_text(
    said: list[str], num_earlier: int, kept_back: int
) -> None:
    said = [*[f"{i} " for i in range(num_earlier)], *said]
    sent, passed, made = SentStream(CHAT), "", ""
    sent.feed(ROLE)
    for number, text in enumerate(said):
        made += text
        # nothing was kept back before the last events
        until = len(made) - (kept_back if number >= num_earlier else 0)
        new = made[len(passed) : until]
        passed += new
        delta = json.dumps({"content": new}, separators=(",", ":")) if new else "{}"
        sent.feed(chunk(delta, f"[{100 + number}]"))

    def decode(ids: Sequence[int]) -> str:
        return "".join([said[id - 100] if id >= 100 else "prompt" for id in ids])

    cut = sent.cut_by_text(decode, Stops())

    assert cut is not None
    kept = json.loads(b"[%b]" % cut.ids)
    assert kept == list(range(100, 100 + cut.num_ids))
    assert decode(kept) + cut.overlap == passed


WORDS = [*(f" w{i}" for i in range(8)), "\n", "é"]
END_OF_THOUGHT = 50


class Thinker:
    """Streams tokens as vLLM with a parser of thoughts does: white space at the end of a thought
    is dropped, and at the start of the text. Token n says WORDS[n]."""

    def __init__(self, thought: Sequence[int], text: Sequence[int], *, is_lost: bool) -> None:
        """`is_lost`: its parser takes a thought that has begun in the prompt for text."""
        self._tokens = [*thought, END_OF_THOUGHT, *text]
        self._is_lost = is_lost

    def events(self, number: int) -> Iterator[bytes]:
        yield event(
            {
                **{"id": "x", "created": 1, "model": "m"},
                "choices": [
                    {"index": 0, "delta": {"role": "assistant", "content": ""}}
                    | {"logprobs": None, "finish_reason": None}
                ],
                "prompt_token_ids": [100, *self._tokens[:number]],
            }
        )
        ended = END_OF_THOUGHT in self._tokens[:number] or (self._is_lost and number > 0)
        held, begun = "", number > 0 and ended
        for token in self._tokens[number:]:
            delta = {}
            if token == END_OF_THOUGHT:
                held, ended = "", True
            elif not ended:
                held += WORDS[token]
                if held.strip():
                    delta, held = {"reasoning": held}, ""
            elif begun or WORDS[token].strip():
                delta, begun = {"content": WORDS[token]}, True
            yield chunk(json.dumps(delta, separators=(",", ":")), f"[{token}]")
        yield chunk('{"content":""}', "[]", '"stop"')
        details = {"reasoning_tokens": 3}
        usage = {"prompt_tokens": 1 + number, "completion_tokens": len(self._tokens) - number}
        usage["total_tokens"] = sum(usage.values())
        yield event({"choices": [], "usage": {**usage, "completion_tokens_details": details}})
        yield b"data: [DONE]\n\n"


def decoded(ids: Sequence[int]) -> str:
    return "".join([WORDS[id] if id < len(WORDS) else "" for id in ids])


def thought_and_text(stream: bytes) -> tuple[str, str, Any]:
    thought, text, usage = "", "", None
    for line in stream.decode().splitlines():
        if line.startswith("data: {"):
            data = json.loads(line[6:])
            usage = data.get("usage") or usage
            for choice in data["choices"]:
                thought += choice["delta"].get("reasoning") or ""
                text += choice["delta"].get("content") or ""
    return thought, text, usage


TOKENS = st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=12)


@settings(max_examples=500)
@given(
    tokens=st.tuples(TOKENS, TOKENS),
    num_earlier=st.sampled_from([(0, 0), (200, 0), (0, 200), (200, 200)]),
    lost=st.tuples(st.integers(0, 30), st.booleans()),
    is_lost=st.booleans(),
)
def test_a_thought_and_the_text_behind_it_are_those_of_one_engine(
    tokens: tuple[list[int], list[int]],
    num_earlier: tuple[int, int],
    lost: tuple[int, bool],
    is_lost: bool,
) -> None:
    thought, text = (
        [i % 8 for i in range(n)] + own for n, own in zip(num_earlier, tokens, strict=True)
    )
    engine = Thinker(thought, text, is_lost=is_lost)
    events = list(engine.events(0))
    # in the text or in the thought, near where it ends
    lost_at = max(1, len(events) - 4 - lost[0] - (len(text) if lost[1] else 0))
    sent, passed = SentStream(CHAT), b""
    for each in events[:lost_at]:
        passed += sent.feed(each)
    cut = sent.cut_by_text(decoded, Stops()) if sent.has_thought else sent.cut(Stops())
    if cut is None:
        # a piece has just begun, or has white space that may have been dropped
        said = engine._tokens[: lost_at - 1]
        num_shown = sum(bool(decoded([token]).strip()) for token in said)
        is_dropped = decoded(said[-1:]) in ("", "\n")
        assert num_shown <= 2 or END_OF_THOUGHT in said[-12:] or is_dropped
        return
    seam = RestEvents(cut)
    try:
        for each in list(engine.events(cut.num_ids)):
            passed += seam.feed(SentStream(CHAT).feed(each))
    except SeamError:
        # it was lost where the thought ends, or in white space before that
        behind = [
            token for token in engine._tokens[cut.num_ids - 1 :] if token != WORDS.index("\n")
        ]
        assert is_lost or END_OF_THOUGHT in behind[:4]
        return

    told, right = thought_and_text(passed), thought_and_text(b"".join(events))
    assert told[:2] == right[:2]
    assert told[2]["completion_tokens"] == right[2]["completion_tokens"]
    assert (told[2]["completion_tokens_details"] is None) == cut.has_thought


def test_text_that_is_not_that_of_the_tokens_is_not_gone_on_with() -> None:
    sent = SentStream(CHAT)
    sent.feed(ROLE)
    sent.feed(chunk('{"content":"a"}'))

    assert sent.cut_by_text(lambda ids: "x" * len(ids), Stops()) is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_client_sees_what_it_would_see_without_ids(path: str) -> None:
    engine = FakeEngine(
        [b"a", b"b c", "é".encode()[:1], "é".encode()[1:]], path, "", shows_stop=False
    )
    one = iter(lambda: 1, 0)
    with_ids = engine.events(0, one, with_ids=True)
    sent = SentStream(path)

    passed = [sent.feed(each) for each in with_ids]

    assert passed == list(engine.events(0, one, with_ids=False))


def test_a_long_answer_is_cut_at_its_end() -> None:
    tokens = [b"%d " % i for i in range(1000)]
    sent = SentStream(CHAT)
    for each in list(
        FakeEngine(tokens, CHAT, "", shows_stop=False).events(0, iter(lambda: 1, 0), with_ids=True)
    )[:901]:
        sent.feed(each)

    cut = sent.cut(Stops())

    assert cut is not None
    assert (cut.num_ids, cut.overlap) == (900, "")
    assert json.loads(b"[%b]" % cut.ids) == list(range(900))


def test_events_in_one_piece_are_as_if_they_came_apart() -> None:
    engine = FakeEngine([b"a", b"b", b"c"], COMPLETIONS, "", shows_stop=False)
    events = list(engine.events(0, iter(lambda: 1, 0), with_ids=True))
    apart, together = SentStream(COMPLETIONS), SentStream(COMPLETIONS)

    assert together.feed(b"".join(events[:2])) == b"".join(map(apart.feed, events[:2]))
    assert together.cut(Stops()) == apart.cut(Stops())


ROLE = (
    b'data: {"id":"x","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant",'
    b'"content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,2]}\n\n'
)


def chunk(delta: str, ids: str = "[3]", finish: str = "null") -> bytes:
    return (
        f'data: {{"id":"x","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},'
        f'"logprobs":null,"finish_reason":{finish},"token_ids":{ids}}}]}}\n\n'
    ).encode()


def test_tokens_that_vllm_would_say_nothing_of_are_kept_and_not_said() -> None:
    sent = SentStream(CHAT)
    sent.feed(ROLE)
    sent.feed(chunk('{"content":"a"}'))

    assert sent.feed(chunk("{}", "[4]")) == b""
    sent.feed(chunk('{"content":"b"}', "[5]"))
    cut = sent.cut(Stops())
    assert cut is not None
    assert cut.ids == b"3,4,5"


@pytest.mark.parametrize(
    "delta",
    [
        '{"content":"a","tool_calls":[{"index":0}]}',
        '{"reasoning":"hm"}',
        '{"tool_calls":[{"index":0}]}',
        '{"reasoning_content":"hm"}',
    ],
)
def test_what_is_not_text_is_not_gone_on_with(delta: str) -> None:
    sent = SentStream(CHAT)
    for each in (ROLE, chunk(delta), *[chunk('{"content":"a"}')] * 300):
        sent.feed(each)

    assert sent.cut(Stops()) is None


@pytest.mark.parametrize("choices", ["[]", '[{"text":"a"},{"text":"b"}]', '"none"'])
def test_an_event_that_has_not_one_choice_is_passed_on_and_not_gone_on_with(choices: str) -> None:
    sent = SentStream(CHAT)
    odd = f'data: {{"choices":{choices},"token_ids":[4]}}\n\n'.encode()
    for each in (ROLE, chunk('{"content":"a"}'), chunk('{"content":"b"}')):
        sent.feed(each)

    assert sent.feed(odd) == odd.replace(b"[4]", b"null")
    assert sent.cut(Stops()) is None


@pytest.mark.parametrize(
    "end",
    [
        b'data: {"error":{"message":"EngineCore died"}}\n\n',
        chunk('{"content":""}', "[]", '"abort"'),
    ],
)
def test_that_the_engine_gives_up_is_withheld_until_nobody_goes_on(end: bytes) -> None:
    sent = SentStream(CHAT)
    sent.feed(ROLE)
    before = chunk('{"content":"a"}')

    assert sent.feed(before + end + b"data: [DONE]\n\n") == before.replace(b"[3]", b"null")
    assert sent.is_broken
    assert sent.feed(b": late\n\n") == b""
    cut = sent.cut(Stops())
    assert cut is not None
    assert cut.ids == b"3"
    assert sent.give_up() == end + b"data: [DONE]\n\n" + b": late\n\n"
    assert sent.cut(Stops()) is None


def test_an_engine_that_does_not_tell_its_ids_is_not_gone_on_with() -> None:
    sent = SentStream(CHAT)
    for each in (ROLE, chunk('{"content":"a"}', "null"), chunk('{"content":"b"}')):
        assert sent.feed(each)

    assert sent.cut(Stops()) is None


def test_what_is_no_whole_event_at_the_end_is_not_lost() -> None:
    sent, rest = SentStream(CHAT), RestEvents(Cut(b"1", b"2", 1, "", ROLE[6:].strip()))

    assert sent.feed(b"data: [DONE]") == b"data: [DONE]"
    assert sent.feed(b": hi\n\ndata: [DONE]") == b": hi\n\ndata: [DONE]"
    assert rest.feed(b": hi\n\ndata: [DONE]") == b": hi\n\ndata: [DONE]"


def test_an_answer_that_has_ended_is_not_gone_on_with() -> None:
    sent = SentStream(CHAT)
    for each in (ROLE, chunk('{"content":"a"}'), chunk('{"content":""}', "[4]", '"stop"')):
        sent.feed(each)

    assert sent.is_finished
    assert sent.cut(Stops()) is None


def test_other_text_at_the_seam_is_an_error() -> None:
    first = ROLE[6:].strip()
    events = RestEvents(Cut(b"1,2", b"3", 1, "abc", first))

    assert events.feed(ROLE) == b""
    assert events.feed(chunk('{"content":"ab"}')) == b""
    with pytest.raises(SeamError, match="other text"):
        events.feed(chunk('{"content":"x"}'))


# ---------------------------------------------------------------------------------- requests


CUT = Cut(b"1,2", b"3,4", 2, "", b"{}")


def changed(path: str, **fields: object) -> JsonObject | None:
    raw = json.dumps({"model": "m", "messages": [], "prompt": "p", **fields}).encode()
    body = rest_body(raw, json.loads(raw), CUT, is_completion=path == COMPLETIONS)
    return None if body is None else json.loads(body)


def test_the_rest_is_asked_for_with_what_is_left() -> None:
    body = changed(CHAT, max_tokens=10, min_tokens=1, seed=7, stop=["x"])

    assert body is not None
    assert body["kv_transfer_params"] == {"prompt_token_ids": [1, 2, 3, 4]}
    assert (body["max_tokens"], body["min_tokens"], body["seed"]) == (8, 0, 9)
    assert body["stop"] == ["x"]


def test_a_completion_has_16_tokens_unless_it_says_so() -> None:
    body = changed(COMPLETIONS)

    assert body is not None
    assert (body["prompt"], body["max_tokens"]) == ([1, 2, 3, 4], 14)
    assert "kv_transfer_params" not in body


@pytest.mark.parametrize(
    ("max_tokens", "thinking"),
    [
        (1100, {"type": "enabled", "budget_tokens": 1024}),
        (1027, {"type": "enabled", "budget_tokens": 1024}),
        (1026, {"type": "adaptive"}),  # 1024 are left, which vLLM would refuse
    ],
)
def test_a_budget_of_thoughts_is_left_out_once_max_tokens_is_not_above_it(
    max_tokens: int, thinking: JsonObject
) -> None:
    given = {"type": "enabled", "budget_tokens": 1024}

    body = changed("/v1/messages", max_tokens=max_tokens, thinking=given)

    assert body is not None
    assert body["thinking"] == thinking


@pytest.mark.parametrize("cached", [None, 0, 16])
def test_the_usage_tells_what_the_first_engine_had_in_its_cache(cached: int | None) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    told = event({"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 3}}})

    passed = RestEvents(Cut(b"1,2", b"3", 1, "", ROLE[6:].strip()), "", cached).feed(told)

    details = None if cached is None else {"cached_tokens": cached}
    assert json.loads(passed[6:])["usage"] == {
        **{"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8},
        "prompt_tokens_details": details,
    }


@pytest.mark.parametrize("fields", [{"max_tokens": 2}, {"max_completion_tokens": 1}, {"seed": "a"}])
def test_nothing_is_asked_for_where_nothing_is_left_or_read(fields: JsonObject) -> None:
    assert changed(CHAT, **fields) is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": 1, "presence_penalty": 0.5}, "presence_penalty"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, None),
        ({"something_new": 1}, "something_new"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 0.0, "n": 1, "logprobs": None, "bad_words": [], "stop": "x"}, None),
        ({"response_format": {"type": "text"}, "tool_choice": "auto", "seed": 1}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, None),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config"),
        ({"output_config": []}, "output_config"),
        ({"thinking_token_budget": 8}, None),
    ],
)
def test_a_field_that_would_mean_something_else_ends_the_stream(
    fields: JsonObject, name: str | None
) -> None:
    assert why_not(fields) == name


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, None),
        ({"n": 2}, "n"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, None),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)
def test_only_streams_of_one_text_are_kept(more: JsonObject, why: str | None) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat = {"model": "m", "messages": messages, "stream": True, **more}
    assert why_not_at_once(parse_chat(json.dumps(chat).encode())) == why


def test_several_prompts_are_not_kept() -> None:
    body = parse_completion(b'{"model":"m","prompt":["a","b"],"stream":true}')
    assert why_not_at_once(body) == "prompt"


def test_responses_are_not_kept() -> None:
    body = parse_responses(b'{"model":"m","input":"a","stream":true}')
    assert why_not_at_once(body) == "kind"
