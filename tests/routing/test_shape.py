from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.routing.structured_gate.doubles import Words, make_gate, schema
from tests.scheduling.tables import candidates

from inferway.errors import SpecError
from inferway.openai_api.kinds import PARSERS
from inferway.routing.director import shape_of
from inferway.routing.structured_gate.gate import Gate
from inferway.routing.structured_gate.shape import Shape
from inferway_structured.texts import AnswerText
from inferway_structured.turns import ANYBODY

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
FORM = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


async def asked(gate: Gate | None, path: str, **fields: Any) -> Shape | None:
    raw = msgspec.json.encode({"model": "m", **fields})
    body = PARSERS[path](raw)
    return await shape_of(gate, path, body, len(raw), candidates(2).endpoints, ANYBODY)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": MESSAGES, **schema("a")}),
        (CHAT, {"messages": MESSAGES, "structured_outputs": {"json_object": True}}),
        (CHAT, {"messages": MESSAGES, "guided_regex": "a"}),
        ("/v1/completions", {"prompt": "hi", **schema("a")}),
        ("/v1/completions", {"prompt": "hi", "guided_choice": ["a"]}),
        ("/v1/responses", {"input": "hi", "text": {"format": FORM}}),
        ("/v1/responses", {"input": "hi", "structured_outputs": {"regex": "a"}}),
        (
            "/v1/responses",
            {
                "input": "hi",
                "tools": [{"type": "function", "name": "f"}],
                "tool_choice": "required",
            },
        ),
    ],
)
async def test_every_way_to_ask_is_seen(path: str, fields: dict[str, Any]) -> None:
    shape = await asked(make_gate(), path, **fields)

    assert shape is not None
    assert len(shape.asked) == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": MESSAGES, "response_format": None, "tool_choice": "auto"}),
        ("/v1/embeddings", {"input": "hi", "response_format": {"type": "json_object"}}),
    ],
)
async def test_other_requests_are_not_looked_at(path: str, fields: dict[str, Any]) -> None:
    library = Words()

    assert await asked(make_gate(library=library), path, **fields) is None
    assert not library.asked


async def test_without_a_gate_shapes_are_the_engines_matter() -> None:
    assert await asked(None, CHAT, messages=MESSAGES, **schema("invalid")) is None


async def test_what_is_invalid_is_refused() -> None:
    with pytest.raises(SpecError):
        await asked(make_gate(), CHAT, messages=MESSAGES, **schema("invalid"))


@pytest.mark.parametrize("echo", [True, False])
async def test_an_answer_that_begins_with_its_prompt_cannot_be_judged(echo: bool) -> None:
    gate = make_gate()
    shape = await asked(gate, "/v1/completions", prompt="hi", echo=echo, **schema("a"))

    assert shape is not None
    assert await shape.judge([AnswerText("{}")]) is (None if echo else True)
