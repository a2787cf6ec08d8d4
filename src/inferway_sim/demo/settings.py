"""Settings of the demo."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings of the demo, from its flags. The hub's token is HF_TOKEN in the environment."""

    model: str | None = None  # whose tokenizer and template are used; SmolLM2's when absent
    block_size: int = 16
    port: int = 8080
