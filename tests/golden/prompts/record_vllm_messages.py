"""Writes vllm_messages.jsonl.gz anew:
`/path/to/vllm-venv/bin/python record_vllm_messages.py MODEL_DIR [COUNT FILE]`.

Asks the installed vLLM which chat it makes of the bodies of messages_rules.py, and what it renders
of that with the templates of vllm_chats.jsonl.gz. With COUNT and FILE, of so many drawn bodies,
with all templates of tests/data, into FILE.
"""
# mypy: ignore-errors

import asyncio
import copy
import gzip
import json
import sys
from pathlib import Path

import transformers
from messages_rules import RULES, drawn
from record_vllm_chats import GOLDEN as CHATS
from record_vllm_chats import HERE, TEMPLATES, model_config, rendered_request, rows
from transformers import AutoTokenizer
from vllm.entrypoints.anthropic import serving
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError

import vllm

GOLDEN = HERE / "vllm_messages.jsonl.gz"
NOT_RENDERED = ("images", "refused")


# Who finds out which effort stands for no thinking: a class of its own since 0.33.
Resolver = getattr(serving, "DisabledThinkingEffortResolver", AnthropicServingMessages)


class Probe(Resolver):
    """What an engine finds out of its template, without an engine."""

    def __init__(self, tokenizer, config):
        self._tokenizer, self._config = tokenizer, config

    def merges(self) -> bool | None:
        """None: vLLM does not start."""
        try:
            template = self._tokenizer.chat_template
            return AnthropicServingMessages._detect_merge_inline_system(template)
        except Exception:
            return None

    async def effort(self) -> str:
        probe = getattr(self, "_probe", None) or self._probe_disabled_thinking_effort
        return await probe()

    async def _render_probe_prompt(self, effort):
        request = ChatCompletionRequest(
            messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort
        )
        try:
            return rendered_request(request, self._tokenizer, self._config, {})
        except Exception:
            return None


def chat_of(body: dict, merge: bool, effort: str) -> ChatCompletionRequest:
    request = AnthropicMessagesRequest.model_validate(copy.deepcopy(body))
    return AnthropicServingMessages.to_chat_completion_request(
        request, merge_inline_system=merge, disabled_thinking_effort=effort
    )


def chat(body: dict, merge: bool) -> dict | None:
    """None if it is refused."""
    try:
        made = chat_of(body, merge, "none").model_dump(mode="json", exclude_unset=True)
    except Exception:
        return None
    names = ("messages", "tools", "reasoning_effort", "chat_template_kwargs", "max_tokens")
    return {name: made[name] for name in names if made.get(name) is not None}


def render(body: dict, merge: bool, effort: str, tokenizer, config) -> str | None:
    try:
        return rendered_request(chat_of(body, merge, effort), tokenizer, config, {})
    except (ValueError, VLLMValidationError):
        return None


def main(model: str, count: int, file: Path) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model), model_config(model)
    templates = {row["id"]: row["chat_template"] for row in rows(TEMPLATES)}
    meta = rows(CHATS)[0]
    meta["meta"]["engine"] = f"vLLM {vllm.__version__}, transformers {transformers.__version__}"
    if count:
        asked = [("drawn", body) for body in drawn(count)]
        meta["meta"]["templates"] = list(templates)
    else:
        asked = [(rule, body) for rule, bodies in RULES.items() for body in bodies]
    cases = [
        {
            "rule": rule,
            "body": body,
            "chats": [chat(body, merge) for merge in (False, True)],
            "expected": {},
        }
        for rule, body in asked
    ]
    found = {}
    for name in meta["meta"]["templates"]:
        tokenizer.chat_template = templates[name]
        probe = Probe(tokenizer, config)
        merge, effort = probe.merges(), asyncio.run(probe.effort())
        found[name] = [merge, effort]
        if merge is None:
            continue
        for case in cases:
            if case["rule"] not in NOT_RENDERED:
                made = render(case["body"], merge, effort, tokenizer, config)
                case["expected"][name] = made
    meta["meta"]["found"] = found
    with file.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed:
        packed.writelines(json.dumps(row).encode() + b"\n" for row in (meta, *cases))


if __name__ == "__main__":
    count, file = (int(sys.argv[2]), Path(sys.argv[3])) if len(sys.argv) > 2 else (0, GOLDEN)
    main(sys.argv[1], count, file)
