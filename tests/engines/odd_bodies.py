"""Bodies that are odd, and that vLLM takes or refuses: what record_verdicts.py asks its classes,
and test_odd_bodies.py an engine and a gateway. Always the same ones; standard library only."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, TOKENIZE, DETOKENIZE = "/v1/embeddings", "/tokenize", "/detokenize"
MESSAGES, COUNT_TOKENS, RERANK = "/v1/messages", "/v1/messages/count_tokens", "/rerank"
MODEL = "smollm2"


class Odd(NamedTuple):
    name: str  # what is odd about it
    path: str
    raw: bytes


HI = {"role": "user", "content": "Hi"}
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [HI], "max_tokens": 1, "max_completion_tokens": 1},
    COMPLETION: {"model": MODEL, "prompt": "Hi", "max_tokens": 1},
    RESPONSES: {"model": MODEL, "input": "Hi", "max_output_tokens": 1},
    EMBEDDINGS: {"model": MODEL, "input": "Hi"},
    TOKENIZE: {"model": MODEL, "prompt": "Hi"},
    DETOKENIZE: {"model": MODEL, "tokens": [1]},
    MESSAGES: {"model": MODEL, "messages": [HI], "max_tokens": 1},
    COUNT_TOKENS: {"model": MODEL, "messages": [HI]},
    RERANK: {"model": MODEL, "query": "Hi", "documents": ["Hi"]},
}

HALF = "\ud800"
_INTEGERS: list[Any] = [
    *("1", " 2 ", "1.0", "1.00", "1_0", "+3", "-1", "007", "1.5", "1e2", "0x1", "", "one", "1 0"),
    *(1.0, 2.5, -1.0, 0.0, 1e3, 1e30, 10**30, True, False, [], {}, [1], "١", "\u20031", "\x1f1"),
    *(float("nan"), float("inf"), "nan", "0-1", "0__1", "1__0", "_1", "9" * 40, HALF, None),
]
_TRUTHS: list[Any] = [
    *("true", "TRUE", "t", "yes", "Y", "on", "1", "false", "False", "f", "no", "n", "off", "0"),
    *(1, 0, 1.0, 0.0, -0.0, 2, -1, 0.5, 10**30, "", " true", "maybe", "null", [], {}, HALF, None),
]
_TEXTS: list[Any] = ["", 1, 1.0, True, [], {}, HALF, "a" + HALF, "\ud83d\ude00", "\x00", None]
_OBJECTS: list[Any] = [{}, [], "{}", 1, True, {"a": HALF}, {"a": float("nan")}, {HALF: 1}, None]

# Fields that both type, by what they are.
_TYPED: dict[str, dict[str, list[Any]]] = {
    CHAT: {
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), _INTEGERS),
        "truncate_prompt_tokens": ["5", 5.0, "5.5", "-1", -2, True, None, 10**30],
        **dict.fromkeys(("stream", "echo", "add_special_tokens"), _TRUTHS),
        **dict.fromkeys(("add_generation_prompt", "continue_final_message"), _TRUTHS[-10:]),
        **dict.fromkeys(("model", "cache_salt"), _TEXTS),
        "reasoning_effort": ["low", "LOW", 1, HALF, None],
        "truncation_side": ["left", "Left", 1, None],
        **dict.fromkeys(("chat_template_kwargs", "vllm_xargs"), _OBJECTS),
        "documents": [[], [{}], [{"text": 1}], [{"text": "x"}], {}, None],
        "tool_choice": ["auto", "none", "x", 1, None],
        "chat_template": ["x", "a" + HALF, 1, None],
    },
    COMPLETION: {
        "max_tokens": _INTEGERS,
        **dict.fromkeys(("stream", "echo"), _TRUTHS),
        "add_special_tokens": ["false", 0, "2", 1.0],
        "truncate_prompt_tokens": ["5", 5.0, 5.5, "-1"],
        **dict.fromkeys(("model", "cache_salt", "suffix"), _TEXTS),
    },
    RESPONSES: {
        "max_output_tokens": _INTEGERS,
        "stream": _TRUTHS,
        **dict.fromkeys(("model", "instructions"), _TEXTS),
        "truncation": ["auto", "disabled", "Auto", 1, None],
        "chat_template_kwargs": _OBJECTS,
    },
    EMBEDDINGS: {"model": _TEXTS},
    TOKENIZE: {"model": _TEXTS, "add_special_tokens": _TRUTHS},
    DETOKENIZE: {"model": _TEXTS},
    **{path: {"model": _TEXTS} for path in (MESSAGES, COUNT_TOKENS, RERANK)},
}

# Fields that one of the paths has; what has another one must be able to bring them.
_ELSEWHERE = (
    *("cache_salt", "messages", "input", "tools", "tool_choice", "structured_outputs"),
    *("output_config", "return_assistant_tokens_mask", "guided_json", "structural_tag"),
    *("bad_words", "session_id"),
)
_NO_SUCH_FIELD: list[Any] = [HALF, 5, "x", ["x"], {"x": 1}, True]

# What asks for a shape.
_FLAGS: list[Any] = ["true", 1, 0.0, "no", 2, "x", None]
_SHAPES: dict[str, list[Any]] = {
    "structured_outputs": [
        *({"regex": "a", "disable_any_whitespace": flag} for flag in _FLAGS),
        *({"json_object": flag} for flag in _FLAGS),
        *({"regex": 1}, {"choice": ["a", 1]}, {"choice": "a"}, {"json": "{}"}, {}, [], "x"),
    ],
    "response_format": [
        *(
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": flag}}
            for flag in _FLAGS
        ),
        *({"type": "text"}, {"type": "x"}, {}, "text", {"type": "json_schema"}),
    ],
}

# Fields that only vLLM types, or nobody.
_OTHERS: dict[str, list[Any]] = {
    "user": [HALF, "x", 1, None],
    "metadata": [{"a": HALF}, {"a": "b"}, {}],
    "temperature": ["0.5", "1", 1, True, float("nan"), float("inf"), HALF],
    "seed": ["1", 1.0, 1.5, 2**63, 2**64, -(2**63)],
    "n": ["1", 1.0, 1.5],
    "top_p": ["1", 1, float("inf")],
    "logit_bias": [{"1": "1"}, {"1": float("nan")}],
    "stop": ["x", ["x"], HALF, [1]],
    "unknown": [HALF, float("nan"), float("-inf"), 10**30, 1e308, {HALF: [HALF]}, {"a": 2**64}],
}

_PROMPTS: list[Any] = [
    *([1, 2], ["1", "2"], [1, "2"], ["1", 2], [1.0, 2], [1, 2.0, "3"], [True], [[1], ["2"]]),
    *([[1.0]], [[True]], [["1"]], [["1", 2], [3]], ["1.0"], ["-1"], [1.5], ["a", 1], [[1], "a"]),
    *(["a", [1]], [1, None], [None], [{}], {}, 7, True, [[1, "x"]], [], [[]], [""], "", [-1]),
    *([10**30], [2**40], HALF, [HALF], None, ["a", ["b"]], [[[1]]], ["1", 1.0], [" 1", 2]),
]
_INPUTS: list[Any] = [[HI], [], [1], ["a"], {}, 1, True, HALF, None, [{"role": "user"}]]

_CONTENTS: list[Any] = [
    *({}, [], "", None, 5, True, [7], [None], [[]], [{}], ["a"], {"a": 1}, HALF),
    *([{"type": "text", "text": "a"}], [{"type": "text", "text": HALF}], [{"type": "text"}]),
]
_ROLES = ("user", "assistant", "system", "developer", "tool")


def _functions() -> Iterator[dict[str, Any]]:
    flags: list[Any] = ["true", "FALSE", "on", 1, 0, 1.0, 2, "x", [], None]
    for value in flags:
        yield {"strict": value}
        yield {"defer_loading": value}
    for name in ("description", "x"):
        yield {name: HALF}
    yield {"description": 5}
    schemas: list[Any] = [{}, [], "{}", None, {"description": HALF}, {"default": float("nan")}]
    for schema in schemas:
        yield {"parameters": schema}
    yield {"strict": "true", "parameters": {"type": "object", "description": HALF}}
    yield {"strict": "1", "parameters": {"type": "object", "properties": {}, "x": float("nan")}}


def _encoded(body: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    text = json.dumps({**body, "user": "\u00e4\u4e2d"}, ensure_ascii=False)
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        yield encoding, text.encode(encoding)
        yield f"{encoding} with BOM", f"\ufeff{text}".encode(encoding)
    yield "utf-8 with BOM", codecs.BOM_UTF8 + text.encode()
    yield "two BOMs", codecs.BOM_UTF8 * 2 + text.encode()
    yield "latin-1", text.replace("\u4e2d", "").encode("latin-1")
    yield "surrogates in UTF-8", text.replace("\u4e2d", HALF).encode("utf-8", "surrogatepass")
    yield "surrogates in UTF-16", text.replace("\u4e2d", HALF).encode("utf-16", "surrogatepass")
    yield "cut", text.encode()[:-1]
    yield "something behind", text.encode() + b" {}"
    yield "a control character", text.replace("\u4e2d", "\n").encode()
    yield "single quotes", text.replace('"', "'").encode()
    yield "a comma too many", text.replace("}", ",}").encode()
    yield "spaces of Unicode", b"\xc2\xa0" + text.encode()


def _twice(path: str) -> Iterator[tuple[str, bytes]]:
    """Of two values the last one counts."""
    inner = json.dumps(NEEDED[path])[1:-1]
    for first, last in (("1", '"x"'), ('"x"', "1"), ("null", '"1"'), ('"1"', '"2"')):
        name = "max_output_tokens" if path == RESPONSES else "max_tokens"
        yield (
            f"{name} twice: {first}, {last}",
            (f'{{{inner}, "{name}": {first}, "{name}": {last}}}'.encode()),
        )
    yield "a name in escapes", f'{{{inner}, "str\\u0065am": "no", "x": NaN}}'.encode()


def _drawn(count: int) -> Iterator[Odd]:
    """Several odd fields at a time, as bytes of any spelling."""
    draw = random.Random(22)
    spellings = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32")
    for i in range(count):
        path = draw.choice((CHAT, CHAT, COMPLETION, RESPONSES))
        body = dict(NEEDED[path])
        values = {**_OTHERS, **_TYPED[path]}
        for name in draw.sample(sorted(values), draw.randint(1, 4)):
            body[name] = draw.choice(values[name])
        raw = json.dumps(body, ensure_ascii=draw.random() < 0.7)
        yield Odd(f"drawn {i}", path, raw.encode(draw.choice(spellings), "surrogatepass"))


def odd_bodies() -> Iterator[Odd]:
    for path, needed in NEEDED.items():
        for name, values in {**_TYPED[path], **(_OTHERS if path != DETOKENIZE else {})}.items():
            for value in values:
                yield _odd(f"{name}: {value!r}"[:60], path, {**needed, name: value})
            without = {key: known for key, known in needed.items() if key != name}
            if without != needed:
                yield _odd(f"no {name}", path, without)
        for what, raw in _encoded(needed):
            yield Odd(what, path, raw)
        for raw in (b"", b"[]", b"null", b"1", b'"x"', b"NaN", b"[" * 5000 + b"]" * 5000):
            yield Odd(f"{raw[:10]!r}", path, raw)
    yield from _odd_inputs()
    yield from _odd_shapes()
    yield from _odd_chats()
    yield from _drawn(300)
    for path, needed in NEEDED.items():
        for name in _ELSEWHERE:
            for value in _NO_SUCH_FIELD:
                yield _odd(f"{name}: {value!r}", path, {**needed, name: value})
    yield from _choices_of_unknown_tools()
    yield from _ignored_shapes()


def _odd_inputs() -> Iterator[Odd]:
    for path in (CHAT, COMPLETION, RESPONSES):
        for what, raw in _twice(path):
            yield Odd(what, path, raw)
    for value in _PROMPTS:
        yield _odd(f"prompt: {value!r}", COMPLETION, {**NEEDED[COMPLETION], "prompt": value})
    for path in (RESPONSES, EMBEDDINGS):
        for value in _INPUTS:
            yield _odd(f"input: {value!r}", path, {**NEEDED[path], "input": value})


def _odd_shapes() -> Iterator[Odd]:
    for path in (CHAT, COMPLETION):
        for name, shapes in _SHAPES.items():
            for shape in shapes:
                yield _odd(f"{name}: {shape!r}", path, {**NEEDED[path], name: shape})


# That vLLM had up to 0.11, and ignores.
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag")


def _ignored_shapes() -> Iterator[Odd]:
    values: list[Any] = ["(", HALF, 5, ["x", 1], {"type": "x"}, {"a": float("nan")}]
    forms: list[Any] = [None, {"type": "json_object"}]
    for path in (CHAT, COMPLETION):
        for name in _GUIDED:
            for value in values:
                for form in forms:
                    body = {**NEEDED[path], name: value, "response_format": form}
                    yield _odd(f"{name}: {value!r} beside {form}", path, body)
        two = {"guided_json": {}, "guided_regex": "a"}
        yield _odd(f"{two}", path, {**NEEDED[path], **two})
        for form in ({"type": "json_schema", "json_schema": {"name": "x"}}, {"type": "x"}):
            body = {**NEEDED[path], "use_beam_search": True, "response_format": form}
            yield _odd(f"{form} with beam search", path, body)


def _odd_chats() -> Iterator[Odd]:
    needed = NEEDED[CHAT]
    histories: list[Any] = [[], {}, "x", None, ["x"], [[]], [{}], [{"content": "x"}], [{"role": 5}]]
    for messages in histories:
        yield _odd(f"messages: {messages!r}", CHAT, {**needed, "messages": messages})
    for role in _ROLES:
        for content in _CONTENTS:
            message = {"role": role, "content": content, "tool_call_id": "a"}
            name = f"{role}: {content!r}"
            yield _odd(name, CHAT, {**needed, "messages": [HI, message]})
    for function in _functions():
        tool = {"type": "function", "function": {"name": "f", **function}}
        yield _odd(f"tool: {function!r}", CHAT, {**needed, "tools": [tool]})
    lists: list[Any] = [[], {}, [5], "x", [{"function": {"name": "f"}}], [{"type": "function"}]]
    for tools in lists:
        yield _odd(f"tools: {tools!r}", CHAT, {**needed, "tools": tools})


def _choices_of_unknown_tools() -> Iterator[Odd]:
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    for mode in ("auto", "required"):
        for name in ("f", "g"):
            listed = [{"type": "function", "name": name}]
            choice = {"type": "allowed_tools", "mode": mode, "tools": listed}
            body = {**NEEDED[RESPONSES], "tools": tools, "tool_choice": choice}
            yield _odd(f"tool_choice: {mode} {name}", RESPONSES, body)
    choice = {"type": "function", "name": "g"}
    body = {**NEEDED[RESPONSES], "tools": tools, "tool_choice": choice}
    yield _odd("tool_choice: g", RESPONSES, body)


def _odd(name: str, path: str, body: dict[str, Any]) -> Odd:
    return Odd(name, path, json.dumps(body).encode())
