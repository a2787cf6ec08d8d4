"""Jobs for a compiling child: what a test imports here, the child imports too."""

from __future__ import annotations

import json
import os


def named(argument: bytearray) -> bytes:
    done: bytes = globals()[json.loads(argument)["text"]](argument)
    return done


def upper(argument: bytearray) -> bytes:
    text: str = json.loads(argument)["text"]
    return text.upper().encode()


def spin(_: bytearray) -> bytes:
    while True:
        pass


def grow(_: bytearray) -> bytes:
    return bytes(1 << 30)


def refuse(_: bytearray) -> bytes:
    raise ValueError("not a grammar")


def niceness(_: bytearray) -> bytes:
    return str(os.nice(0)).encode()
