"""`inferway bench …`: measurements that anybody can repeat."""

from __future__ import annotations

import click

from inferway.cli.bench.chat_overhead import chat_overhead
from inferway.cli.bench.director import director
from inferway.cli.bench.docs import docs
from inferway.cli.bench.epp import epp
from inferway.cli.bench.index import index
from inferway.cli.bench.load import load
from inferway.cli.bench.many_seeds import many_seeds
from inferway.cli.bench.peers import peers
from inferway.cli.bench.policies import policies
from inferway.cli.bench.prompts import prompts
from inferway.cli.bench.proxy import proxy
from inferway.cli.bench.route import route
from inferway.cli.bench.scale import scale
from inferway.cli.bench.simulate import simulate
from inferway.cli.bench.structured import structured
from inferway.cli.bench.validate import validate


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
bench.add_command(simulate)
bench.add_command(scale)
bench.add_command(validate)
bench.add_command(peers)
bench.add_command(many_seeds)
bench.add_command(structured)
bench.add_command(epp)
bench.add_command(docs)
bench.add_command(load)
