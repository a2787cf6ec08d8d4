"""`inferway bench chat-overhead`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click

from inferway.bench.chat_overhead.report import CHAT_OVERHEAD, CHAT_OVERHEAD_ENGINE
from inferway.bench.chat_overhead.run import Plan, run_chat_overhead
from inferway.cli.bench.data_option import data_option
from inferway.cli.bench.output import Output, output_options

_FULL = Plan()
_QUICK = Plan(
    rates=(3, 10, 20), seconds=6, fit_seconds=3, warm_up_rate=20, warm_up_seconds=2
)  # fmt: skip


def token_range(text: str) -> tuple[int, int]:
    """`600-800`."""
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter(f"{text!r}: expected two numbers like 600-800")
    return int(match[1]), int(match[2])


def request_rates(text: str) -> tuple[float, ...]:
    """`3,4,5.5`."""
    numbers = re.fullmatch(r"\d+(\.\d+)?(,\d+(\.\d+)?)*", text)
    rates = tuple(float(part) for part in text.split(",")) if numbers else ()
    if not rates or min(rates) == 0:
        raise click.BadParameter(f"{text!r}: expected requests per second like 3,4,5.5")
    return rates


@click.command("chat-overhead")
@click.option("--quick", is_flag=True, help="Three rates for seconds: a look, not a result.")
@click.option(
    "--rates",
    type=request_rates,
    metavar="RATES",
    help="Requests per second, one after the other.  [default: 3,4,5,6,8,10,12,15,20]",
)
@click.option("--seconds", type=click.FloatRange(min=1), help="Of each rate.  [default: 80]")
@click.option(
    "--prompt-tokens",
    type=token_range,
    metavar="LEAST-MOST",
    help="Of a prompt.  [default: 600-800]",
)
@click.option(
    "--output-tokens",
    type=token_range,
    metavar="LEAST-MOST",
    help="Of an answer.  [default: 1-100]",
)
@click.option(
    "--seed", type=int, default=_FULL.seed, show_default=True, help="Of all that is drawn."
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="URL",
    help="A running engine instead of simulated ones; repeat for more.",
)
@data_option("chat")
@output_options("chat_overhead")
def chat_overhead(
    quick: bool,
    rates: tuple[float, ...] | None,
    seconds: float | None,
    prompt_tokens: tuple[int, int] | None,
    output_tokens: tuple[int, int] | None,
    seed: int,
    engines: tuple[str, ...],
    data: Path,
    output: Output,
) -> None:
    """What a chat adds to the time to first token: seed 000's experiment, the same tokens sent as
    chat and as completion."""
    default = _QUICK if quick else _FULL
    plan = replace(
        default,
        rates=rates or default.rates,
        seconds=seconds or default.seconds,
        prompt_tokens=prompt_tokens or default.prompt_tokens,
        output_tokens=output_tokens or default.output_tokens,
        seed=seed,
        engines=tuple(url.rstrip("/") for url in engines),
    )
    # running engines have a section and files of their own
    benchmark = CHAT_OVERHEAD_ENGINE if engines else CHAT_OVERHEAD
    output.measure(benchmark, lambda on_step: run_chat_overhead(data, plan, on_step))
