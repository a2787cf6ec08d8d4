"""Writes vllm_messages.json anew: `/path/to/vllm-venv/bin/python record_vllm_messages.py`.

What the installed vLLM makes of a chat's answers at /v1/messages, whole and streamed: its own
converters, given answers in the form of its own chats. "text" is said by an engine without parsers,
"agent" thinks, speaks and calls a tool.
"""
# mypy: ignore-errors

import asyncio
import json
import re
from pathlib import Path

from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
)

import vllm

TAKES_OBJECTS = vllm.__version_tuple__ >= (0, 33)  # before: events as text
GOLDEN = Path(__file__).parent / "vllm_messages.json"
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "m"}
CACHED = {"cached_tokens": 16, "created_cache_tokens": 16}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": ""}}


def usage(output: int, **details) -> dict:
    return {
        "prompt_tokens": 40,
        "completion_tokens": output,
        "total_tokens": 40 + output,
        **details,
    }


def chunk(delta: dict | None, output: int, finish_reason: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {
        **HEAD,
        "object": "chat.completion.chunk",
        "choices": [] if delta is None else [choice],
        "usage": usage(output, **({"prompt_tokens_details": CACHED} if delta is None else {})),
    }


def called(**fields) -> dict:
    return {"tool_calls": [{"index": 0, **fields}]}


def arguments(text: str) -> dict:
    return called(function={"arguments": text})


TEXT = [
    chunk({"role": "assistant", "content": ""}, 0),
    chunk({"content": "Hel"}, 1),
    chunk({"content": ""}, 2),
    chunk({"content": "lo"}, 3, "length"),
    chunk(None, 3),
]
AGENT = [
    chunk({"role": "assistant", "content": ""}, 0),
    chunk({"reasoning": "I must "}, 1),
    chunk({"reasoning": "look."}, 2),
    chunk({"content": "One moment."}, 3),
    chunk(called(**CALL), 4),
    chunk(arguments('{"path": '), 5),
    chunk(arguments('"a.txt"}'), 6),
    chunk({"content": ""}, 7, "tool_calls"),
    chunk(None, 7),
]


def whole(message: dict, output: int, finish_reason: str) -> dict:
    choice = {"index": 0, "message": {"role": "assistant", **message}}
    response = ChatCompletionResponse.model_validate(
        {
            **HEAD,
            "choices": [{**choice, "finish_reason": finish_reason, "stop_reason": None}],
            "usage": usage(output, prompt_tokens_details=CACHED),
        }
    )
    serving = AnthropicServingMessages.__new__(AnthropicServingMessages)
    return serving.messages_full_converter(response).model_dump(exclude_none=True)


def stream(chunks: list[dict]) -> str:
    async def given():
        for each in chunks:
            if TAKES_OBJECTS:
                yield ChatCompletionStreamResponse.model_validate(each)
            else:
                yield f"data: {json.dumps(each)}\n\n"
        if not TAKES_OBJECTS:
            yield "data: [DONE]\n\n"

    async def made() -> str:
        serving = AnthropicServingMessages.__new__(AnthropicServingMessages)
        return "".join([event async for event in serving.message_stream_converter(given())])

    return asyncio.run(made())


def main() -> None:
    call = {**CALL, "function": {"name": "read", "arguments": '{"path": "a.txt"}'}}
    agent = {"reasoning": "I must look.", "content": "One moment.", "tool_calls": [call]}
    found = {
        "text": {
            "whole": whole({"content": "Hello"}, 3, "length"),
            "ended": whole({"content": "Hello"}, 4, "stop"),
            "empty": whole({"content": ""}, 1, "stop"),
            "stream": stream(TEXT),
        },
        "agent": {"whole": whole(agent, 7, "tool_calls"), "stream": stream(AGENT)},
    }
    # a thought is signed at random
    written = re.sub(r'(signature\\?": ?\\?")[0-9a-f]{32}', r"\g<1>" + "0" * 32, json.dumps(found))
    GOLDEN.write_text(json.dumps(json.loads(written), indent=1) + "\n")


if __name__ == "__main__":
    main()
