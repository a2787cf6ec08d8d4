"""Writes vllm_chats.jsonl.gz anew: `/path/to/vllm-venv/bin/python record_vllm_chats.py MODEL_DIR`.

Asks the installed vLLM what it renders of the bodies of chat_rules.py, and of those in the file
whose rule is "drawn" (made by a program from all fields at random, and accepted by vLLM), with
the templates whose ids are in the file.
"""
# mypy: ignore-errors

import copy
import gzip
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import transformers
from chat_rules import RULES
from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers import hf, merge_kwargs
from vllm.renderers.chat_utils import parse_chat_messages

import vllm

HERE = Path(__file__).parent
GOLDEN = HERE / "vllm_chats.jsonl.gz"
EXCLUDE = "exclude_tools_when_tool_choice_none"
TEMPLATES = HERE.parents[1] / "data" / "templates" / "chat_templates.jsonl.xz"


def rows(path: Path) -> list:
    with (lzma if path.suffix == ".xz" else gzip).open(path, "rt") as file:
        return [json.loads(line) for line in file]


def model_config(model: str) -> SimpleNamespace:
    config = SimpleNamespace(model_type="llama")
    absent = dict.fromkeys(("multimodal_config", "tokenizer_revision", "code_revision", "revision"))
    return SimpleNamespace(
        **absent,
        model=model,
        tokenizer=model,
        hf_config=config,
        hf_text_config=config,
        enable_prompt_embeds=False,
        trust_remote_code=False,
    )


def rendered(body: dict, tokenizer, config: SimpleNamespace, flags: dict) -> object:
    """A text, or ids. Raises what vLLM does. `flags` of the engine, by their names in inferway's
    settings."""
    request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
    return rendered_request(request, tokenizer, config, flags)


def rendered_request(
    request: ChatCompletionRequest, tokenizer, config: SimpleNamespace, flags: dict
) -> object:
    hf._CONTENT_FORMATS.clear()
    excluded = request.tool_choice == "none" and flags.get(EXCLUDE)
    shown = None if excluded else request.tools
    tools = None if shown is None else [tool.model_dump() for tool in shown]
    params = request.build_chat_params(
        flags.get("chat_template"), flags.get("chat_template_content_format", "auto")
    ).with_defaults(
        merge_kwargs(flags.get("chat_template_kwargs"), {"tools": tools, "tokenize": False})
    )
    content_format = hf.resolve_chat_template_content_format(
        chat_template=params.chat_template,
        tools=params.chat_template_kwargs.get("tools"),
        given_format=params.chat_template_content_format,
        tokenizer=tokenizer,
        model_config=config,
    )
    messages, _, _ = parse_chat_messages(request.messages, config, content_format)
    arguments = params.get_apply_chat_template_kwargs()
    return hf.safe_apply_chat_template(config, tokenizer, messages, **arguments)


def render(
    body: dict, template: str, tokenizer, config: SimpleNamespace, flags: dict | None = None
) -> object | None:
    """None if it is refused."""
    tokenizer.chat_template = template
    try:
        return rendered(body, tokenizer, config, flags or {})
    except (ValueError, VLLMValidationError):
        return None


def is_valid(body: dict, config: SimpleNamespace) -> bool:
    """Whether vLLM accepts it before it looks at a template. Lists in messages are validated
    while they are read."""
    try:
        request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
        parse_chat_messages(request.messages, config, "openai")
    except (ValueError, VLLMValidationError):
        return False
    return True


def main(model: str) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model), model_config(model)
    templates = {row["id"]: row["chat_template"] for row in rows(TEMPLATES)}
    meta, *cases = rows(GOLDEN)
    meta["meta"]["engine"] = f"vLLM {vllm.__version__}, transformers {transformers.__version__}"
    drawn = [("drawn", case["body"]) for case in cases if case["rule"] == "drawn"]
    asked = [(rule, body) for rule, bodies in RULES.items() for body in bodies]
    cases = [
        {
            "rule": rule,
            "body": body,
            "valid": is_valid(body, config),
            "expected": {
                name: render(body, templates[name], tokenizer, config)
                for name in meta["meta"]["templates"]
            },
        }
        for rule, body in [*asked, *drawn]
    ]
    with GOLDEN.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in (meta, *cases))


if __name__ == "__main__":
    main(sys.argv[1])
