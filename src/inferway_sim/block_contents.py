"""The contents of each KV block's memory, whatever the engine believes: the tokens whose KV was
written there last. The two differ where blocks came from another engine that had taken them for
something else meanwhile, or that were never meant for this prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inferway_sim.pool import Block


class BlockContents:
    """The memory of one engine's blocks, `block_size` tokens each. A block that is free keeps what
    it holds until it is written again."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._tokens: dict[int, list[int]] = {}

    def of(self, block_id: int) -> list[int]:
        """Return the tokens of a block; none if nothing was ever written there."""
        return list(self._tokens.get(block_id, ()))

    def put(self, blocks: Sequence[Block], contents: Sequence[Sequence[int]]) -> None:
        """Overwrite these blocks as wholes."""
        for block, content in zip(blocks, contents, strict=True):
            self._tokens[block.id] = list(content)

    def write(self, blocks: Sequence[Block], tokens: Sequence[int], start: int) -> None:
        """Write the tokens of a request, from its token `start` on, into its blocks."""
        for number, first, end in self._spans(start, len(tokens)):
            held = self._tokens.setdefault(blocks[number].id, [])
            offset = number * self._block_size
            held[first - offset : end - offset] = tokens[first:end]

    def read(self, blocks: Sequence[Block], num_tokens: int) -> list[int]:
        """Return the first `num_tokens` tokens of a request's blocks; fewer if they hold fewer."""
        found: list[int] = []
        for number, first, end in self._spans(0, num_tokens):
            found += self.of(blocks[number].id)[: end - first]
        return found

    def _spans(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The number of each block that these tokens lie in, and which of them do."""
        size = self._block_size
        for number in range(start // size, -(-end // size)):
            yield number, max(start, number * size), min(end, (number + 1) * size)
