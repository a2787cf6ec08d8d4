"""A gateway's observer of prompts, fed with chats that a real model's template and tokenizer make
tokens of."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import Any

from tests.at_once import on_one_loop

from inferway.extension import Extension
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.protocol import MatchResult
from inferway.model import Decision, Endpoint, Prompt, Reason, TokenIds
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest, parse_chat
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.scheduling.idle import idle
from inferway_sim.prepare import prepare_smollm2

Messages = list[dict[str, Any]]

BLOCK = 16
PATH = "/v1/chat/completions"


@cache
def smollm2() -> ServedModel:
    """A small real model, with a template that writes tools as JSON."""
    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(
        GetOrCreateTokenizerKeyRequest(str(prepare_smollm2()))
    )
    return ServedModel("smollm2", ModelPrompts(renderer, key, flags=_with_tools()), (BLOCK,))


def _with_tools() -> Any:
    from inferway.config import ModelSettings

    return ModelSettings(chat_template=TEMPLATE)


# As Qwen's and Hermes' templates write tools: JSON, with the keys in their order.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- if effort is defined %}<|im_start|>system
Reasoning: {{ effort }}<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if m.content else (m.tool_calls | tojson if m.tool_calls else '') }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


@lru_cache(2_000)
def _token_ids(raw: bytes) -> TokenIds:
    """Of a chat's body. Many tests send the same chats."""
    [ids] = on_one_loop(parse_chat(raw).tokenized_by(smollm2())).token_ids
    ids.flags.writeable = False
    return ids


class Traffic:
    """Routes chats, one a second."""

    def __init__(self, watching: Extension, block_size: int = BLOCK) -> None:
        self.now = 0.0
        self._watching = watching
        self._block_size = block_size

    def prompt(self, messages: Messages, **fields: Any) -> tuple[ChatRequest, Prompt]:
        """The chat's prompt, as a request for it has it."""
        raw = json.dumps({"model": "smollm2", "messages": messages, **fields}).encode()
        body = parse_chat(raw)
        ids = _token_ids(raw)
        return body, Prompt(ids, BlockHasher(self._block_size).keys(ids))

    def chat(self, messages: Messages, *, held: int = 0, **fields: Any) -> Routed:
        """`held`: blocks of the prompt that an engine has."""
        return self.send(*self.prompt(messages, **fields), held)

    def send(self, body: ChatRequest, prompt: Prompt, held: int = 0) -> Routed:
        """The same of a prompt that has been made."""
        self.now += 1.0
        request = LLMRequest(
            request_id=f"r{self.now:g}", target_model="smollm2", body=body, raw=b""
        )
        candidates = idle([Endpoint("e0", "http://e0", 0)], self._block_size)
        candidates.now = self.now
        found = MatchResult({0: held}) if held else MatchResult()
        routed = Routed(
            *(request, smollm2(), {self._block_size: [Matched(prompt, found)]}),
            *(Decision((), Reason.KV_AWARE), candidates),
        )
        self._watching.on_request(routed, 0.0)
        return routed


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}
