"""How often each thing is measured, and how large it is."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """How often, and how large."""

    repeats: int = 21
    fresh_processes: int = 9
    render_rounds: int = 25
    chat_tokens: int = 8_500
    growing_tokens: int = 128_000
    served_before: int = 40  # chats that a process has served before another one comes
    seed: int = 3
    npm: bool = True


QUICK = Plan(repeats=5, fresh_processes=3, render_rounds=5, served_before=10)
