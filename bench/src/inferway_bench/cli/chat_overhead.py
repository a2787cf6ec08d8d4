"""`inferway bench chat-overhead`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click

from inferway_bench.cli.data_option import data_option
from inferway_bench.cli.output import Output, output_options


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
@click.option(
    "--quick", is_flag=True, help="Measure three rates for 6 s each: a look, not a result."
)
@click.option(
    "--rates",
    type=request_rates,
    metavar="RATES",
    help="Send this number of requests a second; of several numbers one after the other.  "
    "[default: 3,4,5,6,8,10,12,15,20]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="Send requests at each rate for this number of seconds.  [default: 80]",
)
@click.option(
    "--prompt-tokens",
    type=token_range,
    metavar="LEAST-MOST",
    help="Give each prompt this number of tokens.  [default: 600-800]",
)
@click.option(
    "--output-tokens",
    type=token_range,
    metavar="LEAST-MOST",
    help="Ask for this number of tokens in each answer.  [default: 1-100]",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Draw conversations, lengths, arrival times and the order in each pair with this seed.",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="URL",
    help="Measure with this running engine instead of simulated ones. Repeat the flag for more "
    "(results/chat_overhead_engine.json).",
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
    """Measure what a chat adds to the time to first token: the experiment of seed 000, in which the
    same tokens are sent as a chat and as a completion."""
    from inferway_bench.chat_overhead.report import CHAT_OVERHEAD, CHAT_OVERHEAD_ENGINE
    from inferway_bench.chat_overhead.run import QUICK, Plan, run_chat_overhead

    default = QUICK if quick else Plan()
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
