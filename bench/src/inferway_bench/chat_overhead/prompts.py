"""Real conversations -> prompts of a given length, as messages, as text and as token ids."""

from __future__ import annotations

import random
from collections.abc import Iterator

from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderChatRequest
from inferway.prompts.renderer import Renderer
from inferway_bench.chat_overhead.workload import Prompt
from inferway_bench.chats import Message, Turns, chat_of, sizes
from inferway_bench.conversations import SHOP_RULES
from inferway_bench.processes import BenchError

_LEAST_CHAT_TOKENS = 20


class PromptMaker:
    """An endless stream of prompts: one system prompt for all, then a conversation of its own."""

    def __init__(
        self,
        root: str,
        turns: Turns,
        prompt_tokens: tuple[int, int],
        output_tokens: tuple[int, int],
        seed: int,
    ) -> None:
        self._renderer = Renderer(num_threads=1)
        wanted = GetOrCreateTokenizerKeyRequest(root)
        self._key = self._renderer.get_or_create_tokenizer_key(wanted)
        self._sizes = sizes(root)
        self._turns = turns
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens
        self._rng = random.Random(seed)
        self._number = 0
        self._system: Message = {"role": "system", "content": SHOP_RULES}
        self._system_tokens = self._sizes.count(SHOP_RULES) + self._sizes.around_turn
        least = self._system_tokens + _LEAST_CHAT_TOKENS
        if prompt_tokens[0] < least:
            raise BenchError(
                f"--prompt-tokens: at least {least}, of which {self._system_tokens} are the system "
                f"prompt that all share; got {prompt_tokens[0]}"
            )

    def close(self) -> None:
        self._renderer.close()

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        low, high = self._prompt_tokens
        while True:
            prompt = self._draw(self._rng.randint(low, high))
            if low <= len(prompt.token_ids) <= high:
                return prompt

    def _draw(self, num_tokens: int) -> Prompt:
        left = num_tokens - self._system_tokens
        chat = chat_of(self._turns, left, self._sizes.count, self._sizes.around_turn)
        # No two prompts share a block behind the system prompt, even where text is used again.
        self._number += 1
        first = {**chat[0], "content": f"({self._number}) {chat[0]['content']}"}
        messages = [self._system, first, *chat[1:]]
        rendered = self._renderer.render_chat(RenderChatRequest(self._key, messages))
        return Prompt(
            messages,
            rendered.text,
            rendered.input_ids.tolist(),
            self._rng.randint(*self._output_tokens),
        )
