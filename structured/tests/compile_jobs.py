"""Jobs for a compiling child: what a test imports here, the child imports too."""

from __future__ import annotations

import json
import os

import outlines_core

_PREPARED: list[outlines_core.Vocabulary] = []


def prepare(argument: bytes) -> None:
    """From `[eos, {token as latin-1: [id, …]}]`."""
    eos, tokens = json.loads(argument)
    ids = {token.encode("latin-1"): found for token, found in tokens.items()}
    _PREPARED.append(outlines_core.Vocabulary(eos, ids))


def index(argument: bytearray) -> bytes:
    """Of a regex."""
    made: bytes = outlines_core.Index(argument.decode(), _PREPARED[0]).__reduce__()[1][0]
    return made


def upper(argument: bytearray) -> bytes:
    return argument.decode().upper().encode()


def spin(_: bytearray) -> bytes:
    while True:
        pass


def niceness(_: bytearray) -> bytes:
    return str(os.nice(0)).encode()
