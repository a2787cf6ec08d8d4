"""vLLM's tokens in, tokens out: requests whose prompts are token ids, which nobody renders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from inferway.errors import RenderError
from inferway.model import MediaSpan, Reason, Tokenized
from inferway.openai_api.read_body import JsonObject, ReadBody, TokenizingModel
from inferway.openai_api.token_ids import GivenIds
from inferway_structured.lax import lax_int


class GenerateRequest(ReadBody, frozen=True, kw_only=True, eq=False):
    """The fields of a `/inference/v1/generate` body that we act on: its prompt is token ids, and
    what chats have beside each other stands in `sampling_params`."""

    path: ClassVar[str] = "/inference/v1/generate"
    is_rendered: ClassVar[bool] = False
    truncate_prompt_tokens: ClassVar[None] = None
    for_the_core: ClassVar[tuple[str, ...]] = ("request_id",)
    xargs_place: ClassVar[str] = "sampling_params.extra_args"
    model: str = ""  # absent, null or empty: the engine's own
    token_ids: GivenIds
    sampling_params: JsonObject
    features: Any = None  # of media: their hashes, and where their tokens stand
    content_parts: Any = None  # media, for which the engine puts tokens into the prompt
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    priority: Any = None  # in the engine's queue
    cache_salt: str | None = None
    stream: bool | None = None

    @property
    def vllm_xargs(self) -> Any:
        """The arguments of plugins, which other bodies have under that name."""
        return self.sampling_params.get("extra_args")

    @property
    def n(self) -> int | None:
        """The number of answers; None: one."""
        return self._number("n")

    @property
    def answer_limit(self) -> int | None:
        return self._number("max_tokens")

    def _number(self, name: str) -> int | None:
        """None for what the engine refuses."""
        try:
            return lax_int(self.sampling_params.get(name))
        except ValueError:
            return None

    @property
    def reads_cache(self) -> bool:
        """True if vLLM looks for the prompt in its cache (SamplingParams.__post_init__)."""
        params = self.sampling_params
        skips = params.get("skip_reading_prefix_cache")
        if skips is None:
            wanted = params.get("prompt_logprobs"), params.get("prompt_logprob_token_ids")
            return wanted == (None, None)
        return not skips

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        return (self.token_ids.tolist(),)

    async def tokenized_by(self, model: TokenizingModel) -> Tokenized:
        """Return its ids, and which of them stand for pictures, sound or video."""
        if self.content_parts:
            raise RenderError("content_parts: the engine puts in their ids", reason=Reason.MEDIA)
        model.check_length(len(self.token_ids), "token_ids")
        return Tokenized([self.token_ids], media=media_spans(self.features, len(self.token_ids)))


def media_spans(features: Any, num_tokens: int) -> list[MediaSpan]:
    """Return the media of a prompt of so many tokens, by the `features` of a body. Raises
    RenderError for what cannot be read: the engine says what is wrong."""
    if features is None:
        return []
    try:
        spans = [
            MediaSpan(name, lax_int(place["offset"]), lax_int(place["length"]))
            for modality, places in features["mm_placeholders"].items()
            for name, place in zip(features["mm_hashes"][modality], places, strict=True)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise RenderError("features: they cannot be read", reason=Reason.MEDIA) from e
    for name, offset, length in spans:
        if not isinstance(name, str) or not 0 <= offset <= offset + length <= num_tokens:
            raise RenderError("features: a place is not in the prompt", reason=Reason.MEDIA)
    return sorted(spans, key=lambda span: span.offset)
