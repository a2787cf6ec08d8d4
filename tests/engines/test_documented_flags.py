"""vLLM's own parser takes every `vllm serve` line of README.md and the guides, and those of
deploy/."""

from __future__ import annotations

import json
import shlex

import yaml
from tests.engines.vllm_code import VllmCode
from tests.reader import ROOT, blocks

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
LINES = [b for document in DOCUMENTS for b in blocks(document) if b.text.startswith("vllm serve")]
SERVICES = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"].values()
ENGINES = yaml.safe_load((ROOT / "deploy/kubernetes/engines/vllm.yaml").read_text())
COMMANDS = [
    *(s["command"] for s in SERVICES if s.get("entrypoint") == ["vllm", "serve"]),
    *(c["args"] for c in ENGINES["spec"]["template"]["spec"]["containers"]),
]
PARSE = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ModuleNotFoundError:  # before 0.33
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
for line in json.load(sys.stdin):
    print("taking:", *line, file=sys.stderr)
    given = parser.parse_args(line)
    print("publisher:", AsyncEngineArgs.from_cli_args(given).kv_events_config.publisher)
"""


def test_vllm_takes_the_flags_as_they_are_written(vllm_code: VllmCode) -> None:
    given = [shlex.split(line.text.replace("\\\n", " "))[2:] for line in LINES] + COMMANDS

    printed = vllm_code.run(["-c", PARSE], given=json.dumps(given))

    told = [line for line in printed.splitlines() if line.startswith("publisher: ")]
    assert told == ["publisher: zmq"] * len(given)
    assert len(LINES) >= 4
    assert len(COMMANDS) == 5
