"""The flags of `inferway bench load`, and the forms of their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from inferway.cli.command import Decorator, section
from inferway_bench.cli.output import TOLERANCE_OPTION
from inferway_bench.loading.generated import ChatSpec

_Command = TypeVar("_Command", bound=Callable[..., Any])

_EXAMPLE = "inferway bench load http://127.0.0.1:8080 --users 8"

# Between a rate and ten times as much; seed 000's own ladder is 3..20.
_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


def request_rates(text: str) -> tuple[float, ...]:
    """`3,4,5.5`, or `3..20`: the two, and the round numbers between them."""
    number = r"\d+(?:\.\d+)?"
    ladder = re.fullmatch(rf"({number})\.\.({number})", text)
    if ladder is not None:
        low, high = float(ladder[1]), float(ladder[2])
        if 0 < low <= high:
            return _ladder(low, high)
    elif re.fullmatch(rf"{number}(,{number})*", text):
        rates = tuple(float(part) for part in text.split(","))
        if min(rates) > 0:
            return rates
    raise click.BadParameter(
        f"{text!r}: expected requests per second like 3,4,5.5 or 3..20, all above 0"
    )


def _ladder(low: float, high: float) -> tuple[float, ...]:
    decade = 10.0 ** math.floor(math.log10(low))
    rates = [low]
    while decade <= high:
        rates += [r for s in _STEPS if low < (r := float(f"{s * decade:.6g}")) < high]
        decade *= 10
    return (*rates, high) if high > low else (low,)


def user_counts(text: str) -> tuple[int, ...]:
    """`8`, or `1,8,64`."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise click.BadParameter(f"{text!r}: expected numbers of users like 8 or 1,8,64")
    return tuple(int(part) for part in text.split(","))


def least_most(text: str) -> tuple[int, int]:
    """`600-800`, or one number."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise click.BadParameter(f"{text!r}: expected a number from 1 on, or two like 600-800")
    return low, high


def header(text: str) -> tuple[str, str]:
    """`Name: value`. The value may be secret: no error says it."""
    match = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)", text)
    if match is None:
        raise click.BadParameter("expected 'Name: value', in one line of printable ASCII")
    return match[1], match[2]


class _Dataset(click.ParamType[Path]):
    """A file, or installed data by its short name."""

    name = "file or name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from inferway_bench.chats import default_data_dir
        from inferway_bench.loading.sources import dataset_file
        from inferway_bench.processes import BenchError

        try:
            return dataset_file(str(value), default_data_dir())
        except BenchError as e:
            self.fail(str(e), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def server(command: _Command) -> _Command:
    """The options that say whom to ask."""
    options = [
        click.option(
            "--model",
            metavar="NAME",
            help="Ask for this model.  [default: the first of /v1/models]",
        ),
        click.option(
            "--api-key-env",
            metavar="NAME",
            help="Send the API key that this environment variable holds.",
        ),
        click.option(
            "--header",
            "headers",
            type=header,
            multiple=True,
            metavar="'NAME: VALUE'",
            help="Send this header with each request. Repeat the flag for more.",
        ),
        click.option(
            "--ca-file",
            type=click.Path(exists=True, dir_okay=False),
            metavar="PEM",
            help="Trust the certificates in this file to sign the server's.  "
            "[default: the system's authorities]",
        ),
        click.option("--insecure", is_flag=True, help="Accept any certificate of the server."),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=300.0,
            show_default=True,
            metavar="SECONDS",
            help="Wait for a whole answer for at most this time.",
        ),
    ]
    part = section("Server", *options, example=f"{_EXAMPLE} --timeout 60")
    decorated: _Command = part(command)
    return decorated


def schedule(command: _Command) -> _Command:
    """The options that say how much, and when."""
    part = section(
        "How much, and when",
        *_arrivals(),
        *_spans(),
        example="inferway bench load http://127.0.0.1:8080 --rates 3..20 --duration 60",
    )
    decorated: _Command = part(command)
    return decorated


def _arrivals() -> list[Decorator]:
    """When requests are sent."""
    return [
        click.option(
            "--rates",
            type=request_rates,
            metavar="RATES",
            help="Send requests at these rates a second, one rate after the other, as in "
            "3,4,5.5 or 3..20, whether answers have come or not (an open loop).",
        ),
        click.option(
            "--users",
            type=user_counts,
            metavar="USERS",
            help="Let this number of users each send a request when the one before is answered, "
            "as in 8 or 1,8,64 (a closed loop).",
        ),
        click.option(
            "--trace-times",
            is_flag=True,
            help="Send requests at the trace's own times (an open loop).",
        ),
        click.option(
            "--speed",
            type=click.FloatRange(min=0, min_open=True),
            default=1.0,
            show_default=True,
            help="Run through the trace's own times this many times as fast.",
        ),
        click.option(
            "--uniform",
            is_flag=True,
            help="Space arrivals evenly, instead of as a Poisson process.",
        ),
        click.option(
            "--sessions",
            "live",
            type=click.IntRange(min=1),
            default=40,
            show_default=True,
            help="Keep this number of conversations open at a time, in an open loop.",
        ),
    ]


def _spans() -> list[Decorator]:
    """How long a load is measured, and what is left out before and after."""
    seconds = click.FloatRange(min=0)
    return [
        click.option(
            "--duration",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="Measure each load for this time.  [default: 60]",
        ),
        click.option(
            "--requests",
            type=click.IntRange(min=1),
            help="Measure each load for this number of requests, instead of --duration.",
        ),
        click.option(
            "--warm-up",
            type=seconds,
            metavar="SECONDS",
            help="Leave out what happens in this time before the measurement.  "
            "[default: 5; with --requests 0]",
        ),
        click.option(
            "--cool-down",
            type=seconds,
            metavar="SECONDS",
            help="Leave out what happens in this time after the measurement.  "
            "[default: 2; with --requests 0]",
        ),
    ]


def workload(command: _Command) -> _Command:
    """The options that say what is sent."""
    part = section(
        "What is sent",
        *_sources(),
        *_generated_chats(),
        *_answers(),
        *_drawing(),
        example=f"{_EXAMPLE} --turns 3-8 --systems 4",
    )
    decorated: _Command = part(command)
    return decorated


def _sources() -> list[Decorator]:
    """Conversations, bodies or a trace."""
    return [
        click.option(
            "--dataset",
            type=_Dataset(),
            metavar="FILE|NAME",
            help="Send the conversations, OpenAI bodies or trace in this file, instead of "
            "generated chats. The names mooncake, agentic, azure and servegen take the traces "
            "that are installed with Inferway, and names such as mt_bench_101 its chats.",
        ),
        click.option(
            "--max-prompt-tokens",
            type=click.IntRange(min=1),
            help="Leave out what a trace has of longer prompts.",
        ),
    ]


def _generated_chats() -> list[Decorator]:
    default = ChatSpec()
    return [
        click.option(
            "--systems",
            type=click.IntRange(min=0),
            default=default.systems,
            show_default=True,
            help="Let generated chats share this number of system prompts.",
        ),
        click.option(
            "--system-tokens",
            type=click.IntRange(min=1),
            default=default.system_tokens,
            show_default=True,
            help="Give each system prompt this number of tokens.",
        ),
        click.option(
            "--turns",
            type=least_most,
            metavar="LEAST-MOST",
            help="Give each generated chat this number of turns.  [default: 3-8]",
        ),
        click.option(
            "--message-tokens",
            type=least_most,
            metavar="LEAST-MOST",
            help="Give each generated message this number of tokens.  [default: 50-200]",
        ),
        click.option(
            "--think",
            type=click.FloatRange(min=0),
            default=0.0,
            show_default=True,
            metavar="SECONDS",
            help="Wait this time, on average, between an answer and the next turn "
            "of a generated chat, with --users.",
        ),
    ]


def _answers() -> list[Decorator]:
    """What is asked for, and what becomes of it."""
    return [
        click.option(
            "--output-tokens",
            type=least_most,
            metavar="LEAST-MOST",
            help="Ask for this number of tokens in each answer.  [default: 50-150; of a dataset "
            "its own]",
        ),
        click.option(
            "--answers",
            type=click.Choice(["server", "given"]),
            help="Keep the server's answers in the history of a chat, or those that were given "
            "with it.  [default: server; with a dataset given]",
        ),
        click.option(
            "--no-ignore-eos",
            is_flag=True,
            help="Let answers end where the model ends them, for servers that refuse ignore_eos.",
        ),
        click.option("--no-stream", is_flag=True, help="Ask for whole answers instead of streams."),
    ]


def _drawing() -> list[Decorator]:
    """What is the same in each run."""
    return [
        click.option(
            "--same-text",
            is_flag=True,
            help="Generate the same words in each run with the same seed, so that caches may know "
            "them. Otherwise text is new each time, and lengths and times are the same.",
        ),
        click.option(
            "--seed",
            type=int,
            default=0,
            show_default=True,
            help="Draw lengths, times and order with this seed.",
        ),
    ]


def results(command: _Command) -> _Command:
    """The options that say what is done with what was found."""
    limit = click.FloatRange(min=0, min_open=True)
    file = click.Path(dir_okay=False, path_type=Path)
    options = [
        click.option(
            "--slo-ttft",
            type=limit,
            metavar="SECONDS",
            help="Count the answers whose first token comes in this time.",
        ),
        click.option(
            "--slo-itl",
            type=limit,
            metavar="SECONDS",
            help="Count the answers with at most this mean time between tokens.",
        ),
        click.option(
            "--slo-e2e",
            type=limit,
            metavar="SECONDS",
            help="Count the answers that are whole in this time.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of tables."),
        click.option(
            "--save", type=file, metavar="FILE", help="Write the run to this file, as JSON lines."
        ),
        click.option(
            "--plot",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="Draw the run as DIR/load.png and DIR/load.svg.",
        ),
        click.option(
            "--compare",
            "old",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="OLD.json",
            help="Compare with a run that --save wrote; the status is 1 if it is worse.",
        ),
        TOLERANCE_OPTION,
    ]
    part = section(
        "Results and goals",
        *options,
        example=f"{_EXAMPLE} --slo-ttft 0.5 --save run.json",
    )
    decorated: _Command = part(command)
    return decorated
