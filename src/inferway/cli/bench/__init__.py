"""`inferway bench …`: measurements that anybody can repeat."""

from __future__ import annotations

import click

from inferway.cli.bench.chat_overhead import chat_overhead
from inferway.cli.bench.director import director
from inferway.cli.bench.epp import epp
from inferway.cli.bench.index import index
from inferway.cli.bench.policies import policies
from inferway.cli.bench.prompts import prompts
from inferway.cli.bench.proxy import proxy
from inferway.cli.bench.route import route
from inferway.cli.bench.structured import structured


@click.group()
def bench() -> None:
    """Measure the gateway beside its peers."""


bench.add_command(route)
bench.add_command(proxy)
bench.add_command(prompts)
bench.add_command(chat_overhead)
bench.add_command(index)
bench.add_command(director)
bench.add_command(policies)
bench.add_command(structured)
bench.add_command(epp)
