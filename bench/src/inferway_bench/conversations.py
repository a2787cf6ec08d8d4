"""Request bodies made of real text: short chats and long ones that grow turn by turn; and the token
ids that an engine would see of a body.

The text is a sample of OpenAssistant's oasst1 (Apache-2.0), kept beside this file: threads of
distinct trees, joined into four conversations of about 8,000 tokens (SmolLM2's tokenizer), and
48 user turns that stand in none of them.

A body is handed to the load generator in two halves, because a constant body would flatter
every router that keeps a cache: what is put between the halves makes the last turn a text that
nobody has seen before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path

import msgspec

from inferway.openai_api.requests import parse_chat
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderChatRequest
from inferway.prompts.renderer import Renderer
from inferway_bench.flags import unpacked

# Takes the place of the number that makes each request's last turn new; no text contains it.
_MARK = "<<number>>"

# Width of that number, so that a body's length does not depend on it.
NUMBER_DIGITS = 9


# A system prompt as small services have it.
SHOP_RULES = (
    "You are a helpful assistant of a small bookshop. Be friendly and brief. Never promise "
    "a delivery date. Prices are in euro and include tax. When a book is out of print, offer "
    "to look for a used copy. When you are asked for advice on medicine or law, say that you "
    "cannot give it. Answer in the language of the question, in at most three sentences, and "
    "end with the number of the shop, 555 0142, when somebody wants to order. Opening hours "
    "are Monday to Saturday from nine to six."
)


class _Sample(msgspec.Struct):
    sessions: list[list[dict[str, str]]]
    questions: list[str]


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """A JSON body with a gap of NUMBER_DIGITS digits inside its last user turn."""

    before: bytes
    after: bytes

    def body(self, number: int) -> bytes:
        return self.before + b"%0*d" % (NUMBER_DIGITS, number) + self.after


def chat_of_8k_tokens(model: str) -> list[BodyTemplate]:
    """Return each conversation with twelve different last turns, about 36 kB a body."""
    pairs = zip(cycle(_sample().sessions), _sample().questions, strict=False)
    return [_template(model, session, question) for session, question in pairs]


def short_chat(model: str, *, stream: bool = False) -> list[BodyTemplate]:
    """Return chats of a system prompt and one question: 0.7 kB of JSON, as small chats are."""
    history = [{"role": "system", "content": SHOP_RULES}]
    more = {"stream": True} if stream else {}
    return [_template(model, history, question, **more) for question in _sample().questions]


def sessions_without_last_turn(model: str) -> list[bytes]:
    """Return each conversation as a chat body that ends before the last turns of
    `chat_of_8k_tokens`: an engine has cached its tokens when the next turn arrives."""
    return [_encode(model, session) for session in _sample().sessions]


def long_chat(model: str, sessions: int) -> tuple[bytes, BodyTemplate, BodyTemplate]:
    """Return a body of `sessions` conversations, one after the other and again and again, of which
    twelve have 95,000 tokens; and two chats of it and a question of 5,000 tokens: one that is new
    from its first word on, and one whose question is."""
    history = list(chain.from_iterable(islice(cycle(_sample().sessions), sessions)))
    question = "\n".join(message["content"] for message in _sample().sessions[0][:20])
    first, last, marked_last = (
        {"role": "user", "content": text} for text in (_MARK, question, f"{_MARK} {question}")
    )
    chats = ([first, *history, last], [*history, marked_last])
    new, as_before = (BodyTemplate(*_encode(model, chat).split(_MARK.encode())) for chat in chats)
    return _encode(model, history), new, as_before


def _template(
    model: str, history: list[dict[str, str]], question: str, **more: bool
) -> BodyTemplate:
    last = {"role": "user", "content": f"{question} (request {_MARK})"}
    before, after = _encode(model, [*history, last], **more).split(_MARK.encode())
    return BodyTemplate(before, after)


def _encode(model: str, messages: list[dict[str, str]], **more: bool) -> bytes:
    body = {"model": model, "messages": messages, "max_tokens": 64, "temperature": 0.7}
    return msgspec.json.encode({**body, **more})


@cache
def _sample() -> _Sample:
    path = Path(__file__).with_name("data") / "conversations.json.gz"
    return msgspec.json.decode(unpacked(path), type=_Sample)


class EnginePrompts:
    """One model's prompts. Close it."""

    def __init__(self, root: str) -> None:
        self._renderer = Renderer(num_threads=1)
        wanted = GetOrCreateTokenizerKeyRequest(root, is_local=True)
        self._key = self._renderer.get_or_create_tokenizer_key(wanted)

    def token_ids(self, body: bytes) -> list[int]:
        """Raises InvalidRequestError or TemplateError."""
        return self._token_ids(body, add_generation_prompt=True)

    def cached_token_ids(self, body: bytes) -> list[int]:
        """Return the ids that `token_ids` does, without those of the generation prompt."""
        return self._token_ids(body, add_generation_prompt=False)

    def _token_ids(self, body: bytes, *, add_generation_prompt: bool) -> list[int]:
        request = RenderChatRequest(
            self._key, parse_chat(body).messages, add_generation_prompt=add_generation_prompt
        )
        ids: list[int] = self._renderer.render_chat(request).input_ids.tolist()
        return ids

    def close(self) -> None:
        self._renderer.close()
