"""Writes vllm_responses.jsonl.gz anew:
`/path/to/vllm-venv/bin/python record_vllm_responses.py MODEL_DIR`.

Asks the installed vLLM what it renders of the Responses bodies of responses_rules.py, with the
templates of vllm_chats.jsonl.gz; and how it tokenizes the text.
"""
# mypy: ignore-errors

import copy
import gzip
import json
import sys
from types import SimpleNamespace

import transformers
from record_vllm_chats import GOLDEN as CHATS
from record_vllm_chats import HERE, TEMPLATES, model_config, rows
from responses_rules import RULES
from transformers import AutoTokenizer
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import (
    construct_input_messages,
    construct_tool_dicts,
)
from vllm.exceptions import VLLMValidationError
from vllm.renderers import hf, merge_kwargs
from vllm.renderers.chat_utils import parse_chat_messages

import vllm

GOLDEN = HERE / "vllm_responses.jsonl.gz"


def render(body: dict, template: str, tokenizer, config: SimpleNamespace) -> str | None:
    """As OnlineRenderer.render_responses and preprocess_chat do."""
    tokenizer.chat_template = template
    hf._CONTENT_FORMATS.clear()
    try:
        request = ResponsesRequest.model_validate(copy.deepcopy(body))
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        messages = construct_input_messages(
            request_instructions=request.instructions, request_input=request.input
        )
        defaults = request.build_chat_params(None, "auto").with_defaults({}).chat_template_kwargs
        params = request.build_chat_params(None, "auto").with_defaults(
            merge_kwargs(defaults, {"tools": tools, "tokenize": False})
        )
        content_format = hf.resolve_chat_template_content_format(
            chat_template=params.chat_template,
            tools=params.chat_template_kwargs.get("tools"),
            given_format=params.chat_template_content_format,
            tokenizer=tokenizer,
            model_config=config,
        )
        conversation, _, _ = parse_chat_messages(messages, config, content_format)
        arguments = params.get_apply_chat_template_kwargs()
        return hf.safe_apply_chat_template(config, tokenizer, conversation, **arguments)
    except (ValueError, VLLMValidationError):
        return None


def how_tokenized(body: dict) -> dict | None:
    try:
        request = ResponsesRequest.model_validate(copy.deepcopy(body))
    except (ValueError, VLLMValidationError):
        return None
    params = request.build_tok_params(SimpleNamespace(max_model_len=4096))
    names = ("max_output_tokens", "truncate_prompt_tokens", "truncation_side", "add_special_tokens")
    # 0.33 says null where a request says nothing of its answer's length, 0.32 says 0
    return {name: getattr(params, name) for name in names} | {
        names[0]: params.max_output_tokens or 0
    }


def main(model: str) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model), model_config(model)
    templates = {row["id"]: row["chat_template"] for row in rows(TEMPLATES)}
    meta = rows(CHATS)[0]
    meta["meta"]["engine"] = f"vLLM {vllm.__version__}, transformers {transformers.__version__}"
    cut = [
        {"model": "m", "input": "hi", **fields}
        for fields in (
            {},
            {"truncation": None},
            {"truncation": "auto"},
            {"truncation": "disabled"},
            {"max_output_tokens": 7},
        )
    ]
    cases = [
        {
            "rule": rule,
            "body": body,
            "expected": {
                name: render(body, templates[name], tokenizer, config)
                for name in (meta["meta"]["templates"] if rule != "engine" else ())
            },
        }
        for rule, bodies in RULES.items()
        for body in bodies
    ]
    tokenized = {"rule": "tokens", "cases": [[body, how_tokenized(body)] for body in cut]}
    with GOLDEN.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in (meta, tokenized, *cases))


if __name__ == "__main__":
    main(sys.argv[1])
