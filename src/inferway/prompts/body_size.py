"""The size of a request: how much work it is, roughly and fast, which decides where it is done; and
how much context it needs, by the rules by which vLLM 0.32 refuses a request that exceeds it
(renderers/params.py, v1/engine/input_processor.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from inferway.errors import InvalidRequestError, PromptTooLongError
from inferway.model import TokenIds
from inferway.openai_api.requests import Body

# Above this a chat is rendered in a helper process (`BodySize.to_render`). Measured with 347
# templates: 2,000 messages of 100 characters take the median 6 ms, the slowest tenth a second;
# sending them away takes half a millisecond of ours. So does sending 1 MB of plain text, which
# takes 0.3 ms to render, but 5 s with some templates.
MAX_TO_RENDER_HERE = 1 << 20


# What a value costs, beside its characters.
_VALUE_CHARS = 10


class BodySize(NamedTuple):
    chars: int  # of text, and some for every value
    objects: int  # messages, parts, tool calls and what is in them

    @property
    def to_render_and_encode(self) -> int:
        """The work of rendering and encoding the body, in characters to encode."""
        return self.chars + 50 * self.objects

    @property
    def to_render(self) -> int:
        """The work of rendering the body alone, in characters to copy."""
        return self.chars + 500 * self.objects


def body_size(values: Iterable[object]) -> BodySize:
    """Return the size of `values`, counted through all their levels. Counting stops as soon as the
    body is certainly too large to be rendered in this process, so that a larger body takes no
    longer."""
    chars = objects = 0
    inside = [iter(values)]
    while inside and chars + 500 * objects <= MAX_TO_RENDER_HERE:
        for value in inside[-1]:
            chars += _VALUE_CHARS
            if type(value) is str:
                chars += len(value)
            elif type(value) is int:
                pass
            elif isinstance(value, dict):
                objects += 1
                content = value.get("content")
                if len(value) == 2 and type(content) is str:  # most messages
                    chars += len(content) + _VALUE_CHARS
                else:
                    inside.append(iter(value.values()))
                    break
            elif isinstance(value, list | tuple):
                plain = _plain_chars(value)
                if not plain:
                    inside.append(iter(value))
                    break
                chars += plain
                objects += len(value)
            if chars + 500 * objects > MAX_TO_RENDER_HERE:
                break
        else:
            inside.pop()
    return BodySize(chars, objects)


def _plain_chars(messages: Sequence[Any]) -> int:
    """The `chars` of messages that are a role and text and no more, as most of a long chat is. 0
    if they are not, or so many that they are not rendered here."""
    if 500 * len(messages) > MAX_TO_RENDER_HERE:
        return 0
    chars = 0
    try:
        for message in messages:
            content = message["content"]
            if len(message) != 2 or type(content) is not str:
                return 0
            chars += len(content)
    except (KeyError, TypeError):
        return 0
    return chars + 2 * _VALUE_CHARS * len(messages)


def context_needed(body: Body, prompts: Sequence[TokenIds]) -> int:
    """Return how many tokens of context the request needs of an engine, counting the prompts that
    are known. A prompt that the engine truncates needs its full truncated length. An answer longer
    than the context is cut by the engine, but the request is refused if `max_tokens` alone exceeds
    the context."""
    needed = [len(ids) + 1 for ids in prompts]
    needed += (body.answer_limit or 0, body.truncate_prompt_tokens or 0)
    if body.prompts and body.truncate_prompt_tokens is None:
        needed += [len(ids) + 1 for ids in body.prompts if not isinstance(ids, str)]
    return max(needed)


def check_length(num_tokens: int, limit: int | None, param: str) -> None:
    """Raise what vLLM says to empty prompts, and in these words to those that leave no room for one
    token more (renderers/params.py, sampling_params.py). `limit`: the model's context length; None:
    it is not known."""
    if num_tokens == 0:
        raise InvalidRequestError(f"{param}: the prompt has no tokens", param=param)
    if limit is None or num_tokens < limit:
        return
    if num_tokens > limit:
        raise PromptTooLongError(
            f"This model's maximum context length is {limit} tokens. However, your prompt"
            f" contains {num_tokens} input tokens, which exceeds this limit even without any"
            " output tokens. Please reduce the length of the input prompt.",
            param=param,
        )
    raise PromptTooLongError(
        f"max_tokens must be at least 1, got 0. Your prompt contains {num_tokens} input tokens,"
        f" as many as this model's maximum context length of {limit} tokens. Please reduce the"
        " length of the input prompt.",
        param="max_tokens",
    )
