"""Dynamo's frontend before HTTP engines: `python dynamo_workers.py SETTINGS`, under the Python of
Dynamo's own venv.

Dynamo speaks no HTTP to engines; one's own is to subclass LLMEngine (its guide "Writing Unified
Backends"). So a worker of each engine passes tokens on to its /v1/completions, and names the socket
of its KV events. They are no children of this process, which becomes the frontend: elsewhere their
work is the engine's, and it is not to count as the router's. They end with its process group.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any


def serve(settings: dict[str, Any], url: str, events: str) -> None:
    """Register a worker of one engine, and pass requests on until the process ends."""
    import aiohttp  # here: the frontend's process needs none of it
    from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
    from dynamo.common.backend.publisher import ZmqSource
    from dynamo.common.backend.run import run

    class HttpEngine(LLMEngine):  # type: ignore[misc]
        """An engine that is reached by HTTP."""

        @classmethod
        async def from_args(cls, argv: list[str] | None = None) -> Any:  # noqa: ARG003
            named = {"model_name": settings["model"], "served_model_name": settings["name"]}
            return cls(), WorkerConfig(namespace="dynamo", discovery_backend="file", **named)

        async def start(self, worker_id: int) -> Any:  # noqa: ARG002
            self.session = aiohttp.ClientSession(headers={"content-type": "application/json"})
            registration = LlmRegistration(kv_cache_block_size=settings["block_size"])
            return EngineConfig(settings["model"], settings["name"], llm=registration)

        async def kv_event_sources(self) -> list[Any]:
            return [ZmqSource(events)]

        async def generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002
            stop = request["stop_conditions"]
            body = {
                "model": settings["name"], "prompt": request["token_ids"], "temperature": 0,
                "max_tokens": stop.get("max_tokens"), "ignore_eos": bool(stop.get("ignore_eos")),
                "stream_options": {"include_usage": True}, "return_token_ids": True, "stream": True,
            }  # fmt: skip
            # without blanks and with `stream` at its end, as the trivial engine reads it
            data = json.dumps(body, separators=(",", ":"))
            last: dict[str, Any] = {"token_ids": [], "index": 0}
            async with self.session.post(f"{url}/v1/completions", data=data) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                    for choice in chunk.get("choices", ()):
                        # the trivial engine names no tokens: 28 is a comma
                        yield {"token_ids": choice.get("token_ids", [28]), "index": 0}
                        last["finish_reason"] = choice["finish_reason"]
                    if chunk.get("usage"):
                        last["completion_usage"] = chunk["usage"]
            yield last

        async def cleanup(self) -> None:
            await self.session.close()

    run(HttpEngine)


def main() -> None:
    """Start the workers, and become the frontend."""
    settings = json.loads(sys.argv[1])
    os.environ["DYN_FILE_KV"] = settings["store"]
    # vllm-router finds a chat's name in a field that Dynamo would refuse.
    os.environ["DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS"] = "1"
    for url, events in settings["engines"]:
        if not os.fork():
            if not os.fork():
                serve(settings, url, events)
            os._exit(0)
        os.wait()
    frontend = ["-m", "dynamo.frontend", "--discovery-backend", "file", *settings["frontend"]]
    os.execv(sys.executable, [sys.executable, *frontend])


if __name__ == "__main__":
    main()
