from __future__ import annotations

from inferway.routing.counts import DirectorStats


def test_engines_that_are_no_more_are_forgotten() -> None:
    stats = DirectorStats()
    stats.tokens_of("stays").prompt = 3
    stats.tokens_of("left").prompt = 5

    stats.forget_others(["stays", "new"])

    assert {engine: tokens.prompt for engine, tokens in stats.tokens.items()} == {"stays": 3}
