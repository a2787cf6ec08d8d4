"""The models an engine serves: one base model under several names, and its adapters."""

from __future__ import annotations

import time
from typing import Any

from inferway.errors import UnknownModelError
from inferway.kv.blocks.dialects import LoraAdapter
from inferway.openai_api.models import model_card
from inferway_sim.cache import Adapter
from inferway_sim.config import SimulatorConfig


class AdapterNames:
    """Name -> adapter, None for the base model."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self._created = int(time.time())
        self._adapters: dict[str, Adapter | None] = dict.fromkeys(config.names)
        for i, (name, path) in enumerate(config.lora_modules.items(), start=1):
            self._adapters[name] = Adapter(i, LoraAdapter(name, path))

    def adapter(self, name: str) -> Adapter | None:
        """Return the adapter of a name; None for the base model and without a name. Raises
        UnknownModelError."""
        if not name:
            return None
        if name not in self._adapters:
            raise UnknownModelError(f"The model `{name}` does not exist.", param="model")
        return self._adapters[name]

    def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter as vLLM's /v1/load_lora_adapter does with `load_inplace`: the name keeps
        its number."""
        before = self._adapters.get(name)
        numbers = [adapter.id for adapter in self._adapters.values() if adapter is not None]
        number = before.id if before is not None else max(numbers, default=0) + 1
        self._adapters[name] = Adapter(number, LoraAdapter(name, path))

    def answered_name(self, name: str) -> str:
        """Return the model's name in answers: the adapter's name, or the base model's first one."""
        adapter = self.adapter(name)
        return adapter.lora.name if adapter else self._config.names[0]

    def listing(self) -> dict[str, Any]:
        """Return the answer of `GET /v1/models`, as vLLM gives it."""
        return {"object": "list", "data": [self._card(name) for name in self._adapters]}

    def _card(self, name: str) -> dict[str, Any]:
        adapter = self._adapters[name]
        return model_card(
            name,
            created=self._created,
            root=adapter.lora.path if adapter else self._config.model,
            parent=self._config.names[0] if adapter else None,
            max_model_len=None if adapter else self._config.max_model_len,
        )
