"""Records what vLLM's request classes make of odd_bodies.py, behind FastAPI as in its server, into
tests/golden/vllm_verdicts.jsonl.xz: `{"name", "path", "body" (base64), "taken", "values"}`; values
are those of the fields that were sent, where they are numbers, truth values, text or a prompt, and
of tools as templates get them. Run by vLLM's own Python, for nothing of ours is imported:

    .venv-vllm/bin/python -m tests.engines.record_verdicts [FILE]
"""

from __future__ import annotations

import asyncio
import base64
import json
import lzma
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.engines.odd_bodies import (
    CHAT,
    COMPLETION,
    COUNT_TOKENS,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    TOKENIZE,
    Odd,
    odd_bodies,
)

VERDICTS = Path(__file__).parents[1] / "golden" / "vllm_verdicts.jsonl.xz"
_ENTRYPOINTS = "vllm.entrypoints"
_CLASSES = {
    CHAT: ("openai.chat_completion.protocol", "ChatCompletionRequest"),
    COMPLETION: ("openai.completion.protocol", "CompletionRequest"),
    RESPONSES: ("openai.responses.protocol", "ResponsesRequest"),
    EMBEDDINGS: ("pooling.embed.protocol", "EmbeddingRequest"),
    TOKENIZE: ("serve.tokenize.protocol", "TokenizeRequest"),
    DETOKENIZE: ("serve.tokenize.protocol", "DetokenizeRequest"),
    MESSAGES: ("anthropic.protocol", "AnthropicMessagesRequest"),
    COUNT_TOKENS: ("anthropic.protocol", "AnthropicCountTokensRequest"),
    RERANK: ("pooling.scoring.protocol", "RerankRequest"),
}
_JSON = [(b"content-type", b"application/json")]


class Server:
    """Routes that read a request as vLLM's do, and answer nothing."""

    def __init__(self) -> None:
        self.read: Any = None  # the last request that was taken
        self._app = import_module("fastapi").FastAPI()
        for path, (module, name) in _CLASSES.items():
            self._add(path, getattr(import_module(f"{_ENTRYPOINTS}.{module}"), name))

    def _add(self, path: str, kind: Any) -> None:
        async def take(request: Any) -> None:
            self.read = request

        take.__annotations__["request"] = kind
        self._app.post(path)(take)

    async def takes(self, odd: Odd) -> bool:
        self.read, status = None, 500
        scope = {
            **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http"},
            **{"path": odd.path, "raw_path": odd.path.encode(), "root_path": ""},
            **{"query_string": b"", "headers": _JSON, "client": ("h", 1), "server": ("h", 2)},
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": odd.raw, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)

        try:
            await self._app(scope, receive, send)
        except Exception:
            return False
        return status == 200


def values_of(odd: Odd, read: Any) -> dict[str, Any]:
    values = {}
    for name, sent in json.loads(odd.raw).items():
        if sent is None:  # there its default, here absent
            continue
        value = getattr(read, name, None)
        if isinstance(value, bool | int | str) or name == "prompt":
            values[name] = value
    if getattr(read, "tools", None) and odd.path == CHAT:
        values["tools"] = [tool.model_dump() for tool in read.tools]
    return values


def main() -> None:
    server, lines = Server(), []
    for odd in odd_bodies():
        taken = asyncio.run(server.takes(odd))
        row = {
            **{"name": odd.name, "path": odd.path, "body": base64.b64encode(odd.raw).decode()},
            **{"taken": taken, "values": values_of(odd, server.read) if taken else {}},
        }
        lines.append(json.dumps(row) + "\n")
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else VERDICTS
    file.write_bytes(lzma.compress("".join(lines).encode()))
    num_taken = sum('"taken": true' in line for line in lines)
    print(f"{file}: {len(lines)} bodies, {num_taken} taken")


if __name__ == "__main__":
    main()
