"""Seed 003 as a program: an embedded fleet, three phases, then a live server.

Everything in it is real but the engines' arithmetic: simulated engines with paged caches and KV
events on real sockets, the gateway on a real port, a real tokenizer and chat template, and a
subscriber that sees what the gateway publishes. Every number that it shows was measured.

settings   the environment's variables and flags
workload   the prompts and conversations
fleet      the model, the engines, and two gateways before engines alike
measure    one request, and how long its first token took
table      what is shown, as lines of 80 characters
published  what a subscriber sees
run        the phases, and the live server
"""

from inferway_sim.demo.run import run_demo
from inferway_sim.demo.settings import DemoSettings

__all__ = ["DemoSettings", "run_demo"]
