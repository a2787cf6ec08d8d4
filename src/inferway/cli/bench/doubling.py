"""Options of benchmarks whose loads are parts of the rate at which round-robin's TTFT doubles."""

from __future__ import annotations

import click

loads_option = click.option(
    "--load", "loads", multiple=True, type=click.FloatRange(min=0.0, min_open=True),
    help="A part of the rate at which round-robin's mean TTFT doubles; repeat for more.  "
    "[default: 0.5, 0.75, 0.9]",
)  # fmt: skip
rate_option = click.option(
    "--rate", type=click.FloatRange(min=0.0, min_open=True),
    help="That rate, in requests a second; it is not looked for then.",
)  # fmt: skip
