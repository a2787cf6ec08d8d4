"""What a request's span says of its model and tokens: OpenTelemetry's conventions for generative AI
(semantic-conventions/gen-ai), attributes that hold names and numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from inferway.openai_api.requests import Body, ChatRequest, CompletionRequest, ResponsesRequest
from inferway.steps.record import Record

Attributes = dict[str, str | int | Sequence[str]]

# Path -> gen_ai.operation.name; the paths that are not here have none.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def span_name(operation: str, record: Record) -> str:
    """`chat MODEL`. A model that nobody serves is a client's text, and has no place in a name."""
    return f"{operation} {record.known_model}" if record.known_model else operation


def attributes(operation: str, record: Record, status: int) -> Attributes:
    """Of a request that has ended."""
    found: Attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "vllm"}
    if record.known_model:
        found["gen_ai.request.model"] = record.known_model
    if record.known_model and status == 200:
        found["gen_ai.response.model"] = record.target_model
    usage = record.usage
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.prompt
        found["gen_ai.usage.output_tokens"] = usage.completion
        if usage.cached is not None:
            found["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    return found


def max_tokens(body: Body) -> int | None:
    """What the client allows the answer; None: as many as the engine does."""
    if isinstance(body, ChatRequest):
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if isinstance(body, CompletionRequest):
        return body.max_tokens
    return body.max_output_tokens if isinstance(body, ResponsesRequest) else None
