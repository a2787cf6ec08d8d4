"""Grammars that make a step take long, drawn with a seed: size × ambiguity."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


def ambiguous_grammars(seed: int, count: int) -> list[tuple[str, str]]:
    """Each with its name; of each kind as many as of any other. All have answers without end."""
    rng = Random(seed)
    names = list(KINDS)
    return [
        (f"{names[at % len(names)]} {at}", KINDS[names[at % len(names)]](rng))
        for at in range(count)
    ]


def _words(rng: Random, most: int = 6) -> list[str]:
    return [f'"{letter}"' for letter in rng.sample("abcdef", rng.randint(1, most))]


def doubled(rng: Random) -> str:
    """As many ways to read n words as there are trees with n leaves."""
    times = rng.choice([2, 2, 3, 5])
    return f"root ::= s\ns ::= {' '.join(['s'] * times)} | {' | '.join(_words(rng))}"


def nullable(rng: Random) -> str:
    times = rng.choice([2, 3, 4])
    return f'root ::= s "!"\ns ::= {" ".join(["s"] * times)} | "" | {" | ".join(_words(rng))}'


def mirrored(rng: Random) -> str:
    words = _words(rng)
    pairs = " | ".join(f"{word} s {word}" for word in words)
    return f'root ::= s "!"\ns ::= {pairs} | {" | ".join(words)} | s s'


def unwound(rng: Random) -> str:
    """Rows stay short until one word ends all that is open, in one row."""
    times = rng.choice([1, 3, 30, 200])
    ways = " | ".join(f'"a" r x{at}' for at in range(times))
    blanks = "\n".join(f'x{at} ::= "" | "{at % 7}x"' for at in range(times))
    return f'root ::= r r\nr ::= {ways} | "b" "a" | "c"\n{blanks}'


def expression(rng: Random) -> str:
    operators = " | ".join(f'e "{one}" e' for one in rng.sample("+-*/%&^", rng.randint(1, 7)))
    return f'root ::= e\ne ::= {operators} | "(" e ")" | [0-9]+ | [a-z0-9]+'


def lexemes(rng: Random) -> str:
    """Lark: terminals that begin alike, of any length."""
    terminals = [f"/[ab]{{1,{rng.randint(2, 60)}}}[a-{letter}]*/" for letter in "bcdefgh"]
    chosen = rng.sample(terminals, rng.randint(2, 7))
    return f"start: s\ns: s s | {' | '.join(chosen)}"


def many_rules(rng: Random) -> str:
    """Any rules at all, and one that makes an answer possible at each."""
    count = rng.choice([3, 10, 40])
    rules = []
    for at in range(count):
        ways = [
            " ".join(
                f"n{rng.randrange(count)}" if rng.random() < 0.6 else rng.choice(_words(rng))
                for _ in range(rng.randint(1, 4))
            )
            for _ in range(rng.randint(1, 4))
        ]
        rules.append(f"n{at} ::= {' | '.join([*ways, rng.choice(_words(rng))])}")
    return "\n".join(["root ::= n0 root | n1", *rules])


KINDS: dict[str, Callable[[Random], str]] = {
    kind.__name__: kind
    for kind in (doubled, nullable, mirrored, unwound, expression, lexemes, many_rules)
}
