"""A grammar of one's own, and as much of torch as vLLM's bitmask shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

END = 63
NUM_WORDS = 2


@dataclass
class Letters:
    """Takes the tokens 0 to 31, then END. Its masks tell how many it has taken. Raises where it is
    told to."""

    raises: str = ""
    failure: str | None = None
    taken: list[int] = field(default_factory=list)
    terminated: bool = False
    must: Sequence[int] = (1, 2)

    def accept(self, tokens: Sequence[int]) -> bool:
        self._may_raise("accept")
        self.taken += tokens
        return all(token < 32 for token in tokens)

    def validate(self, tokens: Sequence[int]) -> int:
        self._may_raise("validate")
        return next((i for i, token in enumerate(tokens) if token >= 32), len(tokens))

    def rollback(self, num_tokens: int) -> None:
        self._may_raise("rollback")
        del self.taken[len(self.taken) - num_tokens :]

    def fill(self, row: Any) -> None:
        self._may_raise("fill")
        row[:] = [len(self.taken), 0]

    def forced(self) -> Sequence[int]:
        self._may_raise("forced")
        return self.must

    def _may_raise(self, name: str) -> None:
        if name == self.raises:
            raise RuntimeError("a fault of the library")


class Tensor:
    """Of int32 words."""

    def __init__(self, words: Any) -> None:
        self.words = words

    @classmethod
    def of(cls, num_rows: int) -> Tensor:
        return cls(np.full((num_rows, NUM_WORDS), 77, np.int32))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.words[index])

    def numpy(self) -> Any:
        return self.words
