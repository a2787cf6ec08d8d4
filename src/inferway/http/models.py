"""GET /v1/models and /v1/models/NAME: what the live engines serve, in the fields that vLLM gives.

Tools read more than the names: `vllm bench serve` takes the tokenizer from `root`, others cut their
prompts to `max_model_len`. Where engines differ in a value, the first one's holds; of their context
lengths the shortest, which every engine can keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from inferway.errors import UnknownModelError
from inferway.fleet.fleet import MAX_SHOWN, Fleet
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.openai_api.models import Card, model_card, permission
from inferway.routing.rewrite import Rewrites

PATH = "/v1/models"


class ModelPages:
    """The pages that list models. Every client may read them."""

    def __init__(self, fleet: Fleet, rewrites: Callable[[], Rewrites]) -> None:
        """`rewrites`: the rules that hold now."""
        self._fleet = fleet
        self._rewrites = rewrites
        self._created = int(time.time())  # vLLM says when it was asked, which tells nothing

    async def list(self, _: Request, responder: Responder) -> None:
        """Answer with all models, and the names that rewrites lead to them."""
        body = {"object": "list", "data": [*self._cards().values()]}
        responder.send(200, JSON, msgspec.json.encode(body))

    async def retrieve(self, request: Request, responder: Responder) -> None:
        """Answer with one model; the slashes of its name may be percent-encoded. Raises
        UnknownModelError, or NoEndpointError if its engines do not answer."""
        name = unquote(request.path.removeprefix(f"{PATH}/"))
        cards = self._cards()
        if name not in cards:
            self._check_engines(name)
            known = ", ".join(sorted(cards))
            raise UnknownModelError(
                f"model: no engine serves {name[:MAX_SHOWN]!r}; known: {known}", param="model"
            )
        responder.send(200, JSON, msgspec.json.encode(cards[name]))

    def _check_engines(self, name: str) -> None:
        """Raises NoEndpointError if engines that may serve the model do not answer."""
        fleet = self._fleet
        if not fleet.models:
            fleet.model(name)
        if any(name in engine.model_names for engine in fleet.engines):
            fleet.candidates(name)

    def _cards(self) -> dict[str, Card]:
        cards: dict[str, Card] = {}
        for engine in self._fleet.engines:
            for told in engine.facts.models if engine.facts and engine.healthy else ():
                card = cards.get(told.name)
                if card is None:
                    cards[told.name] = model_card(
                        told.name,
                        created=self._created,
                        root=told.root or told.name,
                        parent=told.parent,
                        max_model_len=told.max_model_len,
                        owned_by=told.owned_by or "vllm",
                    )
                else:
                    lengths = (card["max_model_len"], told.max_model_len)
                    card["max_model_len"] = min(filter(None, lengths), default=None)
        for name, rewritten in self._rewrites().cards(cards).items():
            cards.setdefault(name, {**rewritten, "permission": [permission(name, self._created)]})
        return cards
