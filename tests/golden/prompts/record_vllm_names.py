"""Writes vllm_names.jsonl.gz: `/path/to/vllm-venv/bin/python record_vllm_names.py MODEL_DIR`.

What the installed vLLM makes of trusted requests that choose a template, by name or by source, and
of arguments whose names are those of the functions that they are handed to; around the tokenizer
of MODEL_DIR, with each of `MODELS` for its templates and each of `FLAGS`.
"""
# mypy: ignore-errors

import gzip
import json
import sys

from record_vllm_chats import HERE, model_config, rendered
from transformers import AutoTokenizer
from vllm.exceptions import VLLMClientError

NAMES = HERE / "vllm_names.jsonl.gz"

# Arguments of vLLM's and transformers' functions on the way, what they hand on under these names,
# names of Jinja's and of its environment, and of the tokenizer.
COLLIDING = [
    *("self", "model_config", "tokenizer", "conversation", "tools", "documents", "chat_template"),
    *("add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"),
    *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    *("tokenizer_kwargs", "conversations", "messages", "compiled_template", "kwargs", "args"),
    *("add_special_tokens", "reasoning_effort", "enable_thinking", "bos_token", "eos_token"),
    *("range", "dict", "namespace", "lipsum", "cycler", "joiner", "raise_exception"),
    *("strftime_now", "loop", "caller", "varargs", "x"),
]
VALUES = [None, "auto", True, False, 0, 1, "x", "", [], {}, ["a"], [{"a": 1}], {"a": 1}]

# Writes what it gets under each of the names.
NOSY = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}" + "".join(
    f"{{% if {name} is defined %}}{name}={{{{ {name} }}}};{{% endif %}}"
    for name in COLLIDING
    if name not in ("self", "loop", "caller", "varargs", "kwargs", "cycler", "joiner", "lipsum")
    and name not in ("range", "dict", "namespace", "raise_exception", "strftime_now", "messages")
)
CALLING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ range(2) | list }}{{ dict(a=1) }}"
    "{% set n = namespace(a=1) %}{{ n.a }}{{ bos_token }}"
    "{% if raise_exception is string %}{{ raise_exception }}{% endif %}"
    "{% if strftime_now is string %}{{ strftime_now }}{% endif %}"
)
PARTS = (
    "{% for m in messages %}{% for c in m.content %}{{ c.type }}.{{ c.text }}{% endfor %}"
    "{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{{ tools is none }}"
MODELS = {
    "one": NOSY,
    "calling": CALLING,
    "listed": {"default": PLAIN, "tool_use": NOSY, "rag": PARTS},
    "no default": {"tool_use": PLAIN, "rag": PARTS},
    "alone": {"default": PARTS},
}
FLAGS = [
    {},
    {"chat_template": "F{{ messages[0].content }}"},
    {"chat_template": "rag{{ 1 }}", "chat_template_content_format": "openai"},
    {"chat_template_kwargs": {"chat_template": "D{{ messages[0].content }}"}},
    {"chat_template_kwargs": {"chat_template": "rag"}},
    {"chat_template_kwargs": {"tokenize": True, "tools": [], "conversation": "c"}},
]

USER = [{"role": "user", "content": "Hi"}]
PARTED = [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]
DEVELOPER = [{"role": "developer", "content": "Do"}, *USER]
OPEN = [*USER, {"role": "assistant", "content": "I am"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
CHOSEN = [
    *("", " ", "default", "tool_use", "rag", "none", "default.jinja", "Default"),
    *("B{{ messages[0].content }}", "B", PARTS, NOSY),
]


def bodies() -> list[dict]:
    asked = [{}]
    asked += [{"chat_template": chosen} for chosen in CHOSEN]
    asked += [{"chat_template_kwargs": {"chat_template": each}} for each in [*CHOSEN, *VALUES]]
    asked += [
        {"chat_template": body, "chat_template_kwargs": {"chat_template": argument}}
        for body in ("", "default", "B")
        for argument in ("rag", "K{{ 1 }}", None, "auto")
    ]
    made = [{"messages": messages, **fields} for messages in (USER, PARTED) for fields in asked]
    made += [{"messages": USER, "tools": [TOOL], **fields} for fields in asked]
    made += [{"messages": DEVELOPER, **fields} for fields in asked[::2]]
    made += [{"messages": OPEN, **CONTINUE, **fields} for fields in asked[::2]]
    for name in COLLIDING:
        for value in VALUES:
            made.append({"messages": USER, "chat_template_kwargs": {name: value}})
    for name in ("tools", "documents", "add_generation_prompt", "continue_final_message"):
        for value in VALUES:
            given = {"chat_template_kwargs": {name: value}}
            made.append({"messages": OPEN, **CONTINUE, **given})
            made.append({"messages": USER, "tools": [TOOL], "documents": [{"a": "b"}], **given})
    for more in ("padding", "truncation", "max_length", "tokenizer_kwargs", "return_tensors"):
        for value in VALUES:
            made.append({"messages": USER, "chat_template_kwargs": {"tokenize": True, more: value}})
    return [{"model": "m", **body} for body in made]


def made(body: dict, tokenizer, config, flags: dict) -> dict:
    """`text` or `ids`, or why there is neither: "refused" (400), "crash" (500)."""
    try:
        found = rendered(body, tokenizer, config, flags)
    except (ValueError, VLLMClientError):
        return {"fails": "refused"}
    except Exception:
        return {"fails": "crash"}
    if isinstance(found, str):
        return {"text": found}
    if isinstance(found, list) and all(type(each) is int for each in found):
        return {"ids": found}
    return {"fails": "crash"}


def main(model: str) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model), model_config(model)
    asked = bodies()
    written = [{"models": MODELS, "flags": FLAGS}]
    for body in asked:
        expected = {}
        for name, templates in MODELS.items():
            tokenizer.chat_template = templates
            expected[name] = [made(body, tokenizer, config, flags) for flags in FLAGS]
        written.append({"body": body, "expected": expected})
    with NAMES.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in written)


if __name__ == "__main__":
    main(sys.argv[1])
