"""A proof that an engine has made of a chat's pictures the tokens that are believed of them.

The answer's `prompt_tokens` says so. Of a stream without usage is looked up, once the engine's
events must have come, whether the engine holds a block with a picture as it holds those before it.
Evicted blocks look alike, so that counts only several times in a row (ChatMedia.doubt).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from inferway.model import Cut, Headers, HolderId, Prompt, Target, block_size_of
from inferway.prompts.media.chat_media import ChatMedia
from inferway.scheduling.plugin import RequestListener, RequestOutcome

# Returns how many blocks of a prompt the holder has.
HeldBlocks = Callable[[Prompt, HolderId], Awaitable[int]]


class MediaProof(RequestListener):
    """Compares a request's prompt, one for each cut of its engines, with what the engine that has
    answered says of it. `later` runs what it is given once events must have come."""

    __slots__ = ("_held", "_is_answered", "_later", "_media", "_prompts", "_target")

    def __init__(
        self,
        media: ChatMedia,
        prompts: Mapping[Cut, Prompt],
        held: HeldBlocks,
        later: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._media, self._prompts, self._held, self._later = media, prompts, held, later
        self._target: Target | None = None
        self._is_answered = False

    def on_attempt(self, target: Target, now: float) -> Headers:
        del now
        self._target = target
        return ()

    def on_head(self, status: int) -> Headers:
        self._is_answered = status < 400
        return ()

    def on_end(self, ending: RequestOutcome) -> None:
        if ending.outcome != "ok" or not self._is_answered or self._target is None:
            return
        prompt = next(iter(self._prompts.values()))
        if ending.usage is None:
            self._later(partial(self._look_up, self._target.endpoint.holder))
        elif ending.usage.prompt == len(prompt.token_ids):
            self._media.confirm()
        else:
            lengths = ", ".join([str(each.length) for each in prompt.media])
            self._media.drop_rule(
                f"engine {self._target.endpoint.name} counts {ending.usage.prompt} tokens of a"
                f" prompt that was believed to have {len(prompt.token_ids)}, of them for its"
                f" pictures {lengths}"
            )

    async def _look_up(self, holder: HolderId) -> None:
        for cut, prompt in self._prompts.items():
            before = prompt.media[0].offset // block_size_of(cut)
            held = await self._held(prompt, holder)
            if held > before:
                self._media.confirm()
            elif 0 < held == before < len(prompt.block_keys):
                self._media.doubt()
