"""One process of the fuzzer: libFuzzer's own flags, guided by the coverage of our connection code.

`python -m tests.fuzz.worker CORPUS -runs=1000 …`; not asyncio's entry: `Fuzz` never returns.
"""

from __future__ import annotations

import sys

import atheris
import uvloop

with atheris.instrument_imports(include=["inferway.http", "inferway.upstream"]):
    from tests.fuzz.checks import check


async def main() -> None:
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    uvloop.run(main())
