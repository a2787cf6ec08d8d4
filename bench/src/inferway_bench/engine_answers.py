"""What the trivial engine says: the answers of a vLLM 0.32 server, made once."""

from __future__ import annotations

import msgspec


def fixed_answers(model: str, root: str, block_size: int, event_endpoint: str) -> dict[str, bytes]:
    """path -> whole HTTP answer."""
    return {
        "/v1/chat/completions": json_answer(_chat_answer(model)),
        "/v1/models": json_answer(_models(model, root)),
        "/kv_event_sources": json_answer({"0": _event_source(event_endpoint)}),
        "/server_info": json_answer(_server_info(root, block_size)),
        "/version": json_answer({"version": "0.32.0"}),
        "/health": _answer(b"", "text/plain"),
        "/metrics": _answer(_metrics(model, block_size).encode(), "text/plain; version=0.0.4"),
    }


def chat_stream(model: str) -> bytes:
    """The whole HTTP answer to a chat with `stream`: server-sent events, chunked."""
    head = (
        b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    events = _stream_events(model)
    chunks = (b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return head + b"".join(chunks) + b"0\r\n\r\n"


def json_answer(value: object) -> bytes:
    return _answer(msgspec.json.encode(value), "application/json")


def _answer(body: bytes, content_type: str, status: str = "200 OK") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: {content_type}\r\n\r\n"
    )
    return head.encode() + body


REFUSED = _answer(
    b'{"error":{"message":"start the server with --enable-scale-out","type":'
    b'"PermissionDeniedError","param":null,"code":403}}',
    "application/json",
    "403 Forbidden",
)
NOT_FOUND = _answer(b'{"error":"not found"}', "application/json", "404 Not Found")


def _models(model: str, root: str) -> dict[str, object]:
    card = {
        "id": model,
        "object": "model",
        "created": 1767225600,
        "owned_by": "vllm",
        "root": root,
        "parent": None,
        "max_model_len": 32768,
        "permission": [],
    }
    return {"object": "list", "data": [card]}


def _event_source(endpoint: str) -> dict[str, object]:
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": None,
        "buffer_steps": 10000,
        "hwm": 100000,
        "max_queue_size": 100000,
        "topic": "",
    }


def _server_info(root: str, block_size: int) -> dict[str, object]:
    config = {"model_config": {"model": root}, "cache_config": {"block_size": block_size}}
    return {"vllm_config": config, "vllm_env": {}, "system_env": {}}


def _metrics(model: str, block_size: int) -> str:
    labels = f'engine="0",model_name="{model}"'
    lines = [
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{block_size="{block_size}",enable_prefix_caching="True",'
        f'engine="0",num_gpu_blocks="8192"}} 1.0',
    ]
    for name, kind in (
        ("num_requests_running", "gauge"),
        ("num_requests_waiting", "gauge"),
        ("kv_cache_usage_perc", "gauge"),
        ("prefix_cache_queries_total", "counter"),
        ("prefix_cache_hits_total", "counter"),
    ):
        lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{labels}}} 0.0"]
    return "\n".join(lines) + "\n"


def _chat_answer(model: str) -> dict[str, object]:
    message: dict[str, object] = {
        "role": "assistant",
        "content": "Yes, that is right, and it follows from what was said above.",
        "refusal": None,
        "tool_calls": [],
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    usage = {
        "prompt_tokens": 8000,
        "total_tokens": 8014,
        "completion_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 7936},
    }
    return {
        "id": "chatcmpl-5d6e1a0f7c2b4f0f9a4b3c2d1e0f9a8b",
        "object": "chat.completion",
        "created": 1767225600,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def _stream_events(model: str) -> list[bytes]:
    words = ("Yes", ",", " that", " is", " right", ".")
    events = []
    for i, word in enumerate(words):
        last = i == len(words) - 1
        chunk = {
            "id": "chatcmpl-5d6e1a0f7c2b4f0f9a4b3c2d1e0f9a8b",
            "object": "chat.completion.chunk",
            "created": 1767225600,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": word},
                    "finish_reason": "stop" if last else None,
                }
            ],
        }
        events.append(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]
