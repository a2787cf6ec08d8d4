"""The frames that parent and child send to each other on one socket. Standard library only.

A job is `JOB` (length of the function's name, length of the argument), then both. An answer is
`ANSWER` (an Outcome, whether the child is worn out, length of the rest), then the rest.

A job without a name asks for a copy of the child: its argument is `COPY` (the copy's memory, CPU
time and length of a result, and whether it can be copied itself), with a socket beside it, on which
the copy answers.
"""

from __future__ import annotations

import struct
from enum import IntEnum

JOB = struct.Struct("!HQ")
ANSWER = struct.Struct("!B?Q")
COPY = struct.Struct("!QdQ?")


class Outcome(IntEnum):
    """The outcome of a job, as its child reports it. Where the child cannot report, its exit status
    tells."""

    READY = 0  # no job yet: everything is imported, limits hold
    NOT_READY = 1  # an import failed; the rest is why
    DONE = 2  # the rest is the result
    RAISED = 3  # the rest is the error's type
    OUT_OF_MEMORY = 4
    TOO_LONG = 5  # the result is longer than allowed
