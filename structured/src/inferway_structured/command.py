"""`dotvllm …`, and `inferway vllm …` of the gateway: vLLM's own command, with our structured output
in all of its processes.

Every flag, endpoint and help text is vLLM's; ours are --report-validity and --allow-stock. It runs
in this process and under its own name, so that the processes it starts find what they look for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from inferway_structured.vllm.settings import REPORT_VARIABLE, REQUIRED, VARIABLE, is_off

_REPORT_VALIDITY = "--report-validity"
_ALLOW_STOCK = "--allow-stock"
_HELP = frozenset({"-h", "--help"})
_WITHOUT_VLLM = """\
Usage: inferway vllm [vLLM's arguments]
       dotvllm --model MODEL [arguments of `vllm serve`]

Runs vLLM with Inferway's structured output, for example: inferway vllm serve MODEL.
All arguments are vLLM's own, but for
  --report-validity  every stream of a structured answer says before [DONE] whether the answer is
                     valid
  --allow-stock      with a vLLM that Inferway's structured output does not fit, start with vLLM's
                     own; without this flag it does not start then

vLLM is not installed here, so its own help cannot be shown."""
_CURE = "install it with: pip install 'inferway-structured[vllm]'"


def dotvllm() -> None:
    """The console script: `dotvllm --model MODEL --host HOST --port PORT` serves, and `dotvllm
    --help` lists what `serve` takes. A command of vLLM's may come first."""
    sys.exit(run(served(sys.argv[1:])))


def served(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of vLLM's command. What begins with an option is meant for `serve`,
    which takes the model by its place."""
    given = list(arguments)
    if given and (not given[0].startswith("-") or given[0] in ("-v", "--version")):
        return given
    for at, argument in enumerate(given):
        if argument == "--model" and at + 1 < len(given):
            return ["serve", given[at + 1], *given[:at], *given[at + 2 :]]
        if argument.startswith("--model="):
            return ["serve", argument.removeprefix("--model="), *given[:at], *given[at + 1 :]]
    return ["serve", *given]


def run(arguments: Sequence[str]) -> int:
    """Run vLLM's command in this process. Return the status to exit with."""
    if find_spec("vllm") is None:
        if not arguments or _HELP.intersection(arguments):
            print(f"{_WITHOUT_VLLM}\n\n{_CURE}")
            return 0
        print(f"Error: vLLM is not installed here ({sys.prefix}); {_CURE}", file=sys.stderr)
        return 1
    if not is_off():
        os.environ[VARIABLE] = "1" if _ALLOW_STOCK in arguments else REQUIRED
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "inferway" not in allowed.split(","):
        os.environ["VLLM_PLUGINS"] = f"{allowed},inferway"  # vLLM's list of those it may load
    if _REPORT_VALIDITY in arguments:
        os.environ[REPORT_VARIABLE] = "1"
    from vllm.entrypoints.cli.main import main

    ours = (_REPORT_VALIDITY, _ALLOW_STOCK)
    sys.argv = ["vllm", *(argument for argument in arguments if argument not in ours)]
    main()
    return 0
