"""What a director that is measured without engines has around it: a fleet and a prompt source."""

from __future__ import annotations

import time

from inferway.fleet.columns import EndpointColumns, ModelRows
from inferway.kv.index.protocol import Index
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import EXACT, Candidates, Endpoint, HolderId, TokenIds, Tokenized
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody
from inferway.prompts.served import PromptSource, ServedModel
from inferway.routing.director import Director
from inferway.routing.match import Matcher
from inferway.scheduling.load import load_scheduling

MODEL = "m"


def idle_director(
    index: Index, prompts: PromptSource, num_engines: int, block_size: int
) -> Director:
    """Return a director with the default policy for one model of idle engines, whose blocks are
    those in `index`."""
    model = ServedModel(MODEL, prompts, (block_size,))
    return Director(
        IdleEngines(model, num_engines, block_size),
        Matcher(index, SpeculativeOverlay()),
        load_scheduling(None),
        time.monotonic,
    )


class GivenTokens:
    """A prompt source for which every prompt is `token_ids`."""

    def __init__(self, token_ids: TokenIds) -> None:
        self.token_ids = token_ids

    def within(self, contexts: object, rules: object) -> GivenTokens:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        return Tokenized([self.token_ids])

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        return ChatRequest(messages=body.messages)

    @property
    def local(self) -> None:
        return None


class IdleEngines:
    """A fleet of engines that do nothing and serve one model. Its table is the fleet's own."""

    def __init__(self, model: ServedModel, engines: int, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        endpoints = [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(engines)]
        self._rows = ModelRows(endpoints)
        self.columns = EndpointColumns(engines)
        self.columns.states[:] = EXACT
        self.columns.block_sizes[:] = self.columns.cuts[:] = block_size

    def model(self, name: str) -> ServedModel:  # noqa: ARG002
        return self._model

    def sole_model(self) -> str:
        return self._model.name

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        return self._rows.candidates(self.columns)

    def cut(self, holder: HolderId) -> int | None:  # noqa: ARG002
        return self._block_size

    def heal(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return False

    def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing: requests are decided and not sent, none fails, and no engine reports."""

    book = release = healed = reports = suspect = _nothing
