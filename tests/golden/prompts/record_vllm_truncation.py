"""Writes vllm_truncation.jsonl.gz, or vllm_truncation_0_33.jsonl.gz since 0.33:
`/path/to/vllm-venv/bin/python record_vllm_truncation.py`.

What the installed vLLM makes of prompts with `truncate_prompt_tokens` and `truncation_side`, for
a tokenizer that puts special tokens before and behind a text.
"""
# mypy: ignore-errors

import gzip
import itertools
import json
import lzma
import tempfile
from pathlib import Path
from types import SimpleNamespace

from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.renderers.base import BaseRenderer
from vllm.tokenizers.hf import get_cached_tokenizer

import vllm

HERE = Path(__file__).parent
# 0.33 leaves another number of tokens of chats.
_SINCE = "_0_33" if vllm.__version_tuple__ >= (0, 33) else ""
GOLDEN = HERE / f"vllm_truncation{_SINCE}.jsonl.gz"
PHI3 = HERE.parents[1] / "data" / "tokenizers" / "phi-3.tokenizer.json.xz"

# As in tests/prompts/conftest.py: <s> before a text, </s> behind it.
BOS_EOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
    },
}

MAX_MODEL_LEN = 24
TEXTS = [
    "one two three four five six seven eight",
    "a",
    "word " * 500,
    "ab" * 1000 + "c",
    " " * 997 + "end",
]
IDS = list(range(100, 140))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "tokenizer.json"
        whole = json.loads(lzma.decompress(PHI3.read_bytes()))
        file.write_text(json.dumps({**whole, "post_processor": BOS_EOS}))
        # `vllm serve` loads its tokenizer with this side (tokenizers/registry.py).
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), truncation_side="left")
    tokenizer = get_cached_tokenizer(tokenizer)
    rows = [{"max_model_len": MAX_MODEL_LEN}]
    for keep, side, specials, max_tokens in itertools.product(
        (-1, 3, 7, MAX_MODEL_LEN - 1), (None, "left", "right"), (None, False, True), (None, 0, 5)
    ):
        fields = {
            "truncate_prompt_tokens": keep,
            "truncation_side": side,
            "add_special_tokens": specials,
            "max_tokens": max_tokens,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        rows += [row(tokenizer, prompt, fields) for prompt in [*TEXTS, IDS]]
    with GOLDEN.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)


def row(tokenizer, prompt, fields):
    completion = CompletionRequest(model="m", prompt=prompt, **fields)
    messages = [{"role": "user", "content": "x"}]
    chat = ChatCompletionRequest(model="m", messages=messages, **fields)
    return {
        "prompt": prompt,
        "fields": fields,
        "completion": token_ids(tokenizer, prompt, completion),
        "chat": token_ids(tokenizer, prompt, chat) if isinstance(prompt, str) else None,
    }


def token_ids(tokenizer, prompt, request):
    """Of a prompt of the request, or of its rendered chat; null if it is refused."""
    params = request.build_tok_params(SimpleNamespace(max_model_len=MAX_MODEL_LEN))
    as_text = isinstance(prompt, str)
    given = {"prompt": prompt} if as_text else {"prompt_token_ids": prompt}
    renderer = Renderer(tokenizer)
    try:
        return list(renderer._tokenize_singleton_prompt(given, params)["prompt_token_ids"])
    except ValueError:
        return None


class Renderer(BaseRenderer):
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def render_messages(self, messages, params):
        raise NotImplementedError


if __name__ == "__main__":
    main()
