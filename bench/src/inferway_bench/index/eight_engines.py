"""A fleet and a model for a director that is measured without them."""

from __future__ import annotations

from inferway.model import Candidates, Endpoint, HolderId, TokenIds, Tokenized
from inferway.openai_api.requests import ChatRequest, PromptBody
from inferway.prompts.served import ServedModel
from inferway.scheduling.idle import idle
from inferway_bench.index.workload import NUM_ENGINES


class GivenTokens:
    """Every prompt is `token_ids`."""

    def __init__(self, token_ids: TokenIds) -> None:
        self.token_ids = token_ids

    def within(self, contexts: object) -> GivenTokens:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        return Tokenized([self.token_ids])

    def rendered_text(self, body: ChatRequest) -> str | None:  # noqa: ARG002
        return None

    @property
    def local(self) -> None:
        return None


class EightEngines:
    """Idle ones that serve one model."""

    def __init__(self, block_size: int, prompts: GivenTokens) -> None:
        self._block_size = block_size
        self._model = ServedModel("m", prompts, block_sizes=(block_size,))
        self._endpoints = [
            Endpoint(f"engine-{i}", f"http://127.0.0.1:{8000 + i}", i) for i in range(NUM_ENGINES)
        ]

    def model(self, name: str) -> ServedModel:  # noqa: ARG002
        return self._model

    def sole_model(self) -> str:
        return self._model.name

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        return idle(self._endpoints, self._block_size)

    def block_size(self, holder: HolderId) -> int | None:  # noqa: ARG002
        return self._block_size

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        pass

    def release(self, endpoint: Endpoint) -> None:
        pass

    def heal(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return False

    def reports(self, endpoint: Endpoint) -> None:
        pass

    def healed(self, endpoint: Endpoint) -> None:
        pass

    def suspect(self, endpoint: Endpoint) -> None:
        pass
