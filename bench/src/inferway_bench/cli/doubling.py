"""Options of benchmarks whose loads are shares of the rate at which round-robin's TTFT doubles."""

from __future__ import annotations

import click

loads_option = click.option(
    "--load",
    "loads",
    multiple=True,
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SHARE",
    help="Send requests at this share of the rate at which round-robin's mean TTFT doubles. Repeat "
    "the flag for more loads.  [default: 0.5, 0.75, 0.9]",
)
rate_option = click.option(
    "--rate",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="RATE",
    help="Take this number of requests a second as the rate at which round-robin's mean TTFT "
    "doubles.  [default: the benchmark looks for it]",
)
