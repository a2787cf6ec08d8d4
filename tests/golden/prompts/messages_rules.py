"""Bodies of /v1/messages by the rule they show, and bodies drawn of all their parts.
`record_vllm_messages.py` asks vLLM about each, tests/prompts/test_messages_input.py asks us.
Standard library only: vLLM's environment has nothing of ours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]


def body(*messages: Row, **fields: Any) -> Row:
    return {"model": "m", "max_tokens": 8, "messages": list(messages) or [user()], **fields}


def user(content: Any = "hi") -> Row:
    return {"role": "user", "content": content}


def said(content: Any = "hello") -> Row:
    return {"role": "assistant", "content": content}


def system(content: Any = "remember") -> Row:
    return {"role": "system", "content": content}


def text(text: Any = "t", **fields: Any) -> Row:
    return {"type": "text", "text": text, **fields}


def thinking(thinking: Any = "hm") -> Row:
    return {"type": "thinking", "thinking": thinking, "signature": "c2ln"}


def call(name: str = "f", id: str = "toolu_01", **arguments: Any) -> Row:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(content: Any = "r", id: str = "toolu_01", **fields: Any) -> Row:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def tool(name: str = "f", /, **fields: Any) -> Row:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    return {"name": name, "description": f"does {name}", "input_schema": schema, **fields}


def added(name: str = "f") -> Row:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def defined(definition: Row) -> Row:
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}


def removed(name: str = "f") -> Row:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


CACHED = {"cache_control": {"type": "ephemeral"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=0a1b2;"
IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
AT_URL = {"type": "url", "url": "https://images.example/a.png"}
REFERENCE = {"type": "tool_reference", "tool_name": "f"}
OFF, ON = {"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}
ASKED = [user("do"), said([call(x="1")]), user([result()])]

# As Claude Code sends it: cached blocks, a reminder behind the text, a turn with two calls.
CLAUDE_CODE = body(
    user(
        [text("<system-reminder>\nToday is a day.\n</system-reminder>"), text("fix it", **CACHED)]
    ),
    said([thinking("I look first."), text("I look."), call("read", "toolu_a", path="a.py")]),
    user([result([text("1\tdef a():\n2\t    pass")], "toolu_a", is_error=False)]),
    said([text("Now both."), call("run", "toolu_b", command="ls -l"), call("read", "toolu_c")]),
    user([result("", "toolu_b"), result([text("one"), text("two")], "toolu_c", **CACHED)]),
    system([text("The user has opened b.py.")]),
    system=[text(BILLING), text("You are an agent.", **CACHED), text("# Tone\nBe brief.")],
    tools=[tool("read"), tool("run", **CACHED), tool("plan", input_schema={"properties": {}})],
    metadata={"user_id": "user_0_session_1"},
    thinking={"type": "adaptive"},
    output_config={"effort": "high"},
    stream=True,
    temperature=1,
)

RULES: dict[str, list[Row]] = {
    "agents": [CLAUDE_CODE],
    "text": [body(), body(user("")), body(user("a\n\nb"), said(), user("héllo 你好"))],
    "system": [
        body(system="Be brief."),
        body(system=""),
        body(system=[]),
        body(system=[text("a"), text("b\n"), text("")]),
        body(system=[text(BILLING), text("a", **CACHED)]),
        body(system=[text(f"{BILLING}\nkept?"), text("a")]),
        body(system=f"{BILLING}\nThe rest."),
        body(system=BILLING),
        body(system=[{"type": "image", "source": IMAGE}, text("a")]),
    ],
    "inline system": [
        body(user(), system(), user("b"), system="Be brief."),
        body(user(), said(), system([text("a"), text("b")]), user("c")),
        body(user(), system(BILLING), user("c")),
        body(user(), system(f"{BILLING}\nThe rest."), user("c"), system="s"),
        body(user(), system([text(BILLING), text("kept")]), user("c")),
        body(user(), system(""), user("c")),
        body(user(), system([{"type": "image", "source": IMAGE}]), user("c")),
        body(system("first"), user()),
        body(user(), said(), user("b"), system("last"), system="s"),
        body(user(), system("a"), system("b"), user("c"), system=[text("s")]),
    ],
    "blocks": [
        body(user([text("a")])),
        body(user([text("a"), text("b")])),
        body(user([text("a", **CACHED), text("")])),
        body(user([text("")]), user("b")),
        body(user([]), user("b")),
        body(user(), said([]), user("b")),
        body(user(), said([text("")]), user("b")),
        body(user(), said([text("a"), text("b")]), user("c")),
        body(user([thinking(), text("a")])),
        body(user([thinking()]), user("b")),
        body(user([call()]), user("b")),
        body(user([REFERENCE, text("a")])),
        body(user(), said()),
    ],
    "thinking": [
        body(user(), said([thinking(), text("a")]), user("b")),
        body(user(), said([thinking("a"), thinking("b"), text("c")]), user("d")),
        body(user(), said([thinking("")]), user("d")),
        body(user(), said([thinking(None), text("c")]), user("d")),
        body(user(), said([{"type": "redacted_thinking", "data": "AA=="}, text("c")]), user("d")),
        body(user(), said([{"type": "redacted_thinking", "data": "AA=="}]), user("d")),
        body(user(), said([thinking(), call(x="1")]), user([result()])),
    ],
    "tool use": [
        body(*ASKED),
        body(*ASKED, tools=[tool()]),
        body(user(), said([text("a"), call(x=1, y=[None, {"z": 1.5}])]), user([result()])),
        body(
            user(), said([call(), call("g", "toolu_02")]), user([result(), result("s", "toolu_02")])
        ),
        body(user(), said([{"type": "tool_use", "id": "a", "name": "f"}]), user([result(id="a")])),
        body(user(), said([{"type": "tool_use", "id": "a", "input": {}}]), user([result(id="a")])),
    ],
    "tool results": [
        body(*ASKED[:2], user([result(), text("go on")])),
        body(*ASKED[:2], user([text("before"), result(), text("after")])),
        body(*ASKED[:2], user([result([text("a"), text("b")])])),
        body(*ASKED[:2], user([result([])])),
        body(*ASKED[:2], user([result(None)])),
        body(*ASKED[:2], user([result([{"type": "text"}, {"type": "other"}, {}])])),
        body(*ASKED[:2], user([{"type": "tool_result", "content": "r"}])),
        body(*ASKED[:2], user([result(is_error=True)])),
        body(*ASKED[:2], said([result()]), user("b")),
        body(*ASKED[:2], said([result([text("a", n=1.0, b=True, c=None)])]), user("b")),
        body(*ASKED[:2], said([result([])]), user("b")),
        body(*ASKED[:2], user([result([REFERENCE])]), tools=[tool()]),
        body(*ASKED[:2], user([result([{"type": "tool_reference", "name": "g"}, text("a")])])),
        body(*ASKED[:2], user([result([{"type": "tool_reference"}])])),
    ],
    "tools": [
        body(tools=[]),
        body(tools=[tool()]),
        body(tools=[tool(description=None)]),
        body(tools=[{"name": "f", "input_schema": {}}]),
        body(tools=[tool(input_schema={"$schema": "x", "properties": {}}), tool("g")]),
        body(tools=[tool(strict=True), tool("g", strict=False), tool("h", strict="yes")]),
        body(tools=[tool(defer_loading=True), tool("g", defer_loading=False)]),
        body(tools=[tool(type="custom", input_examples=[{"x": "1"}], **CACHED)]),
        body(tools=[tool(), tool(description="twice")]),
        *(
            body(tools=[tool(), tool("g")], tool_choice=choice)
            for choice in (
                {"type": "auto"},
                {"type": "any", "disable_parallel_tool_use": True},
                {"type": "none"},
                {"type": "tool", "name": "g"},
            )
        ),
        body(tool_choice={"type": "none"}),
    ],
    "tool changes": [
        body(user(), system([removed()]), user("b"), tools=[tool(), tool("g")]),
        body(
            user(), system([removed("g"), text("g is gone")]), user("b"), tools=[tool(), tool("g")]
        ),
        body(user(), system([removed(), added()]), user("b"), tools=[tool(), tool("g")]),
        body(user(), system([added()]), user("b"), tools=[tool(defer_loading=True)]),
        body(user(), system([defined(tool("h"))]), user("b"), tools=[tool()]),
        body(user(), system([defined(tool("h", input_schema={}))]), user("b")),
        body(
            user(), system([defined(tool(description="new"))]), user("b"), tools=[tool(), tool("g")]
        ),
        body(user(), system([removed()]), user("b"), tools=[tool()]),
        body(user(), system([defined(tool())]), user("b"), tools=[tool(), tool(description="2")]),
    ],
    "effort": [
        *(body(thinking=given) for given in (OFF, {"type": "adaptive"}, None)),
        {**body(thinking=ON), "max_tokens": 2000},
        *(body(output_config={"effort": e}) for e in ("low", "medium", "high", "xhigh", "max")),
        body(output_config={"effort": "high"}, thinking=OFF),
        body(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}),
        body(thinking=OFF, chat_template_kwargs={"enable_thinking": True}),
        body(chat_template_kwargs={"enable_thinking": False}),
        body(chat_template_kwargs={"reasoning_effort": "low"}, output_config={"effort": "max"}),
    ],
    # Media: what stands before them is known, and no template is asked here.
    "images": [
        body(user([text("see"), {"type": "image", "source": IMAGE}])),
        body(user([{"type": "image", "source": AT_URL}])),
        body(user([{"type": "image", "source": {"data": "AA=="}}, text("a")])),
        body(user([{"type": "image"}, text("a")])),
        body(user([{"type": "image", "source": {}}, text("a")])),
        body(*ASKED[:2], user([result([text("a"), {"type": "image", "source": IMAGE}])])),
        body(*ASKED[:2], user([result([{"type": "image", "source": {"type": "url"}}])])),
        body(*ASKED[:2], user([result([{"type": "image"}])])),
    ],
    # What vLLM refuses, or names by its clock.
    "refused": [
        body(user([{"type": "document", "source": IMAGE}])),
        body(user([{"type": "server_tool_use", "id": "a", "name": "web_search", "input": {}}])),
        body(user([{"text": "a"}])),
        body(user([5])),
        body(user(5)),
        body(user(None)),
        body({"role": "developer", "content": "a"}),
        body({"content": "a"}),
        body(user([text(5)])),
        body(user([thinking(5)])),
        body(user([{"type": "image", "source": "a"}])),
        body(user(), said([{"type": "tool_use", "name": "f", "input": {}}])),
        body(user(), said([{"type": "tool_use", "id": "a", "name": "f", "input": [1]}])),
        body(*ASKED[:2], user([result(5)])),
        body(*ASKED[:2], user([result(["a"])])),
        body(*ASKED[:2], user([result([text(None)])])),
        body(*ASKED[:2], user([result([{"type": "image", "source": "a"}])])),
        body(*ASKED[:2], said([result(5)])),
        body(user([added()])),
        body(user([removed()]), tools=[tool()]),
        body(system=[removed()], tools=[tool()]),
        body(system=[{"type": "document"}]),
        body(user(), system([added("z")]), tools=[tool()]),
        body(user(), system([{"type": "tool_addition"}]), tools=[tool()]),
        body(user(), system([{"type": "tool_addition", "tool": {"type": "x"}}]), tools=[tool()]),
        body(user(), system([{**defined(tool()), "type": "tool_removal"}]), tools=[tool()]),
        body(user(), system(5)),
        body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        body(tools=[{"input_schema": {}}]),
        body(tools=[tool(description=5)]),
        body(tools=[tool(input_schema=[])]),
        body(tool_choice={"type": "x"}),
        body(tool_choice={}),
        body(output_config={"effort": 5}),
        {"model": "m", "max_tokens": 8, "messages": []},
    ],
}

_WORDS = ("the", "file", "has", "two", "lines", "and", "a", "test", "that", "fails", "on", "it")


class _Draw:
    def __init__(self, seed: int, *, images: bool) -> None:
        self._draw, self._images = random.Random(seed), images
        self._num_calls = 0

    def body(self) -> Row:
        draw = self._draw
        messages: list[Row] = []
        open_calls: list[Row] = []
        for turn in range(draw.randint(1, 5)):
            if turn and draw.random() < 0.25:
                messages.append(system(self._system_content()))
            messages.append(user(self._user_content(open_calls)))
            content, open_calls = self._said_content()
            messages.append(said(content))
        if draw.random() < 0.8:
            messages.append(user(self._user_content(open_calls)))
        if draw.random() < 0.15:
            messages.append(system(self._system_content()))
        return body(*messages, **self._fields())

    def words(self) -> str:
        draw = self._draw
        some = draw.choices(_WORDS, k=draw.randint(1, 9))
        return draw.choice((" ", " ", "\n", "  ")).join(some)

    def _maybe_cached(self, block: Row) -> Row:
        return {**block, **CACHED} if self._draw.random() < 0.2 else block

    def _system_content(self) -> Any:
        draw = self._draw
        if draw.random() < 0.4:
            return self.words()
        blocks = [self._maybe_cached(text(self.words())) for _ in range(draw.randint(0, 2))]
        return [text(BILLING), *blocks] if draw.random() < 0.3 else blocks

    def _user_content(self, calls: list[Row]) -> Any:
        draw = self._draw
        if not calls and draw.random() < 0.4:
            return self.words()
        blocks = [result(self._result_content(), made["id"]) for made in calls]
        for _ in range(draw.randint(0 if calls else 1, 2)):
            blocks.insert(
                draw.randint(len(calls), len(blocks)), self._maybe_cached(text(self.words()))
            )
        if self._images and draw.random() < 0.2:
            blocks.append({"type": "image", "source": draw.choice((IMAGE, AT_URL))})
        return blocks

    def _result_content(self) -> Any:
        draw = self._draw
        if draw.random() < 0.5:
            return draw.choice((self.words(), "", None))
        return [text(self.words()) for _ in range(draw.randint(0, 3))]

    def _said_content(self) -> tuple[Any, list[Row]]:
        draw = self._draw
        if draw.random() < 0.3:
            return self.words(), []
        blocks: list[Row] = [thinking(self.words()) for _ in range(draw.choice((0, 0, 1, 2)))]
        if draw.random() < 0.1:
            blocks.append({"type": "redacted_thinking", "data": "AA=="})
        blocks += [text(self.words()) for _ in range(draw.choice((0, 1, 1, 2)))]
        calls = [self._call() for _ in range(draw.choice((0, 0, 1, 1, 2)))]
        return [*blocks, *calls], calls

    def _call(self) -> Row:
        self._num_calls += 1
        arguments: list[Row] = [{}, {"x": self.words()}, {"n": 1, "list": [1.5, None, {"a": "é"}]}]
        return call(
            self._draw.choice("fgh"),
            f"toolu_{self._num_calls:02}",
            **self._draw.choice(arguments),
        )

    def _fields(self) -> Row:
        draw, fields = self._draw, {}
        if draw.random() < 0.7:
            fields["system"] = self._system_content()
        if draw.random() < 0.6:
            fields["tools"] = [
                tool(name, **draw.choice(({}, CACHED, {"strict": True}, {"description": None})))
                for name in "fgh"[: draw.randint(1, 3)]
            ]
            choices: list[Row | None] = [None, {"type": "auto"}, {"type": "any"}, {"type": "none"}]
            fields["tool_choice"] = draw.choice(choices)
        if draw.random() < 0.4:
            fields["thinking"] = draw.choice((OFF, {"type": "adaptive"}))
        if draw.random() < 0.3:
            fields["output_config"] = {"effort": draw.choice(("low", "high", "max"))}
        if draw.random() < 0.2:
            fields["chat_template_kwargs"] = {"enable_thinking": draw.random() < 0.5}
        return fields


def drawn(count: int, seed: int = 0, *, images: bool = False) -> Iterator[Row]:
    """As many bodies that vLLM takes; always the same ones."""
    draw = _Draw(seed, images=images)
    for _ in range(count):
        made = draw.body()
        assert json.loads(json.dumps(made)) == made
        yield made
