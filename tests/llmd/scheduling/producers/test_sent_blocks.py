"""What was sent where, against a model that keeps lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks

CAPACITY = 12
SERVERS = ["a", "b", "c"]
# Prompts as trees of blocks: a block's number tells all before it.
PROMPTS = [
    [1, 2, 3, 4, 5],
    [1, 2, 3, 9],
    [1, 2, 3, 4, 5, 6, 7, 8],
    [20, 21, 22],
    [30],
    [1],
    [20, 21, 22, 23, 24, 25],
]


def held(sent: SentBlocks, hashes: list[int], servers: list[str]) -> dict[str, int]:
    """By server, those that hold nothing left out."""
    depths = sent.held(hashes)[sent.places(servers)].tolist()
    return {server: depth for server, depth in zip(servers, depths, strict=True) if depth}


class SentAndModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sent = SentBlocks(CAPACITY)
        self.model: dict[str, list[int]] = {}  # last used last

    @rule(server=st.sampled_from(SERVERS), prompt=st.sampled_from(PROMPTS))
    def add(self, server: str, prompt: list[int]) -> None:
        self.sent.add(server, prompt)
        blocks = self.model.setdefault(server, [])
        for block in reversed(prompt):
            if block in blocks:
                blocks.remove(block)
            blocks.append(block)
        del blocks[:-CAPACITY]

    @rule(servers=st.sets(st.sampled_from(SERVERS)))
    def keep(self, servers: set[str]) -> None:
        self.sent.keep(servers)
        self.model = {name: blocks for name, blocks in self.model.items() if name in servers}

    @invariant()
    def the_same_is_held(self) -> None:
        for prompt in PROMPTS:
            expected = {}
            for server, blocks in self.model.items():
                depth = next((i for i, b in enumerate(prompt) if b not in blocks), len(prompt))
                if depth:
                    expected[server] = depth

            assert held(self.sent, prompt, SERVERS) == expected

    @invariant()
    def nothing_is_kept_that_nobody_holds(self) -> None:
        assert len(self.sent) == len({b for blocks in self.model.values() for b in blocks})


TestSentAndModel = SentAndModel.TestCase


def test_of_a_prompt_that_does_not_fit_the_beginning_is_kept() -> None:
    sent = SentBlocks(3)
    sent.add("a", [1, 2, 3, 4, 5])

    assert held(sent, [1, 2, 3, 4, 5], ["a", "b"]) == {"a": 3}


def test_nothing_is_held_of_no_blocks() -> None:
    sent = SentBlocks(3)
    sent.add("a", [1])

    assert held(sent, [], ["a"]) == {}


@given(st.integers(2, 400))
def test_each_of_many_servers_is_found(size: int) -> None:
    sent = SentBlocks(10)
    for server in range(size):
        sent.add(f"s{server}", [1, 2][: 1 + server % 2])

    servers = [f"s{server}" for server in range(size)]
    expected = {f"s{server}": 1 + server % 2 for server in range(size)}
    assert held(sent, [1, 2, 3], servers) == expected
