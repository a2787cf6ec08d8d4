"""Writes vllm_cache_reads.json: `/path/to/vllm-venv/bin/python record_vllm_cache_reads.py`.

Whether the installed vLLM looks in its cache for the prompts of each body.
"""
# mypy: ignore-errors

import itertools
import json
from pathlib import Path

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError

READS = Path(__file__).parent / "vllm_cache_reads.json"

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
FIELDS = {
    CHAT: {
        "prompt_logprobs": (None, 0, 1, -1),
        "echo": (False, True),
        "logprobs": (False, True),
        "top_logprobs": (None, 0, 2),
        "stream": (False, True),
        "use_beam_search": (False, True, "yes", "off", 1.0, 0),
    },
    COMPLETION: {
        "prompt_logprobs": (None, 0, 1, -1),
        "echo": (None, False, True),
        "logprobs": (None, 0, 1),
        "max_tokens": (None, 0, 4),
        "stream": (False, True),
        "use_beam_search": (False, True, "t", "n"),
    },
}
OTHERS = [
    (CHAT, {"logprobs": True, "logprob_token_ids": [1]}),
    (CHAT, {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
    (COMPLETION, {"logprobs": 1, "logprob_token_ids": [1]}),
    (COMPLETION, {"echo": True, "return_token_ids": True}),
    ("/v1/responses", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
]
ABSENT = (None, False)


def reads(path: str, fields: dict) -> tuple[dict, bool | None]:
    """The body, and None if vLLM refuses it."""
    if path == CHAT:
        body, kind = {"model": "m", "messages": MESSAGES, **fields}, ChatCompletionRequest
    elif path == COMPLETION:
        body, kind = {"model": "m", "prompt": "Hi", **fields}, CompletionRequest
    else:
        body, kind = {"model": "m", "input": "Hi", **fields}, ResponsesRequest
    try:
        request = kind.model_validate(dict(body))
    except (ValueError, VLLMValidationError):
        return body, None
    if getattr(
        request, "use_beam_search", False
    ):  # its steps have sampling parameters of their own
        request.to_beam_search_params(4, {})
        return body, True
    return body, not request.to_sampling_params(4, {}).skip_reading_prefix_cache


def main() -> None:
    asked = list(OTHERS)
    for path, fields in FIELDS.items():
        for values in itertools.product(*fields.values()):
            given = zip(fields, values, strict=True)
            asked.append((path, {name: value for name, value in given if value not in ABSENT}))
    asked += [
        (path, {name: None}) for path in FIELDS for name in ("prompt_logprobs", "top_logprobs")
    ]
    asked.append((CHAT, {"echo": True, "top_logprobs": None}))
    distinct = {json.dumps(each): each for each in asked}.values()
    told = [(path, *reads(path, fields)) for path, fields in distinct]
    rows = [
        json.dumps({"path": path, "body": body, "reads": read})
        for path, body, read in told
        if read is not None
    ]
    READS.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
