"""Writes vllm_chats.jsonl.gz anew: `/path/to/vllm-venv/bin/python record_vllm_chats.py MODEL_DIR`.

Keeps the bodies and template ids of the file, and asks the installed vLLM what it renders.
"""
# mypy: ignore-errors

import copy
import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

from transformers import AutoTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import hf, merge_kwargs
from vllm.renderers.chat_utils import parse_chat_messages

HERE = Path(__file__).parent
GOLDEN = HERE / "vllm_chats.jsonl.gz"
TEMPLATES = HERE.parents[3] / "shared" / "data" / "templates" / "chat_templates.jsonl.gz"


def rows(path: Path) -> list:
    with gzip.open(path, "rt") as file:
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


def render(body: dict, template: str, tokenizer, config: SimpleNamespace) -> str | None:
    tokenizer.chat_template = template
    hf._CONTENT_FORMATS.clear()
    try:
        request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
        tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        params = request.build_chat_params(None, "auto").with_defaults(
            merge_kwargs(None, {"tools": tools, "tokenize": False})
        )
        content_format = hf.resolve_chat_template_content_format(
            chat_template=None,
            tools=params.chat_template_kwargs.get("tools"),
            given_format="auto",
            tokenizer=tokenizer,
            model_config=config,
        )
        messages, _, _ = parse_chat_messages(request.messages, config, content_format)
        arguments = params.get_apply_chat_template_kwargs()
        return hf.safe_apply_chat_template(config, tokenizer, messages, **arguments)
    except ValueError:
        return None


def main(model: str) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model), model_config(model)
    templates = {row["id"]: row["chat_template"] for row in rows(TEMPLATES)}
    meta, *cases = rows(GOLDEN)
    for case in cases:
        for name in case["expected"]:
            case["expected"][name] = render(case["body"], templates[name], tokenizer, config)
    with GOLDEN.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in (meta, *cases))


if __name__ == "__main__":
    main(sys.argv[1])
