"""Writes vllm_flags.jsonl.gz: `/path/to/vllm-venv/bin/python record_vllm_flags.py MODEL_DIR`.

What the installed vLLM renders of the bodies in the file (some of vllm_chats.jsonl.gz, and some
that flags act on) when it is started with flags that shape prompts.
"""
# mypy: ignore-errors

import gzip
import json
import sys

from record_vllm_chats import EXCLUDE, GOLDEN, HERE, TEMPLATES, model_config, render, rows
from transformers import AutoTokenizer

FLAGS = HERE / "vllm_flags.jsonl.gz"

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}
DEFAULTS = {
    "enable_thinking": True,
    "thinking": True,
    "reasoning_effort": "high",
    "documents": [{"title": "a", "text": "b"}],
    "tools": [TOOL],
    "add_generation_prompt": False,
    "unknown": None,
}


def main(model: str) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model), model_config(model)
    sources = {row["id"]: row["chat_template"] for row in rows(TEMPLATES)}
    meta, *cases = rows(GOLDEN)
    ids = list(cases[0]["expected"])
    other = sources[ids[5]]
    flags = [
        {"chat_template_content_format": "string"},
        {"chat_template_content_format": "openai"},
        {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        {"chat_template_kwargs": DEFAULTS},
        {EXCLUDE: True},
        {"chat_template": other},
        {"chat_template": other, "chat_template_kwargs": {"thinking": True}, EXCLUDE: True},
    ]
    bodies = [row["body"] for row in rows(FLAGS)[1:]]
    written = [{"special_tokens": meta["meta"]["special_tokens"], "flags": flags}]
    for body in bodies:
        expected = {
            name: [render(body, sources[name], tokenizer, config, given) for given in flags]
            for name in ids[::2]
        }
        written.append({"body": body, "expected": expected})
    with FLAGS.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in written)


if __name__ == "__main__":
    main(sys.argv[1])
