"""vLLM's own parser takes every `vllm serve` line of README.md and the guides."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from tests.reader import ROOT, Block, blocks

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
LINES = [b for document in DOCUMENTS for b in blocks(document) if b.text.startswith("vllm serve")]
PARSE = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

given = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
print(AsyncEngineArgs.from_cli_args(given).kv_events_config.publisher)
"""


@pytest.mark.parametrize("line", LINES, ids=lambda block: block.option("--port"))
def test_vllm_takes_the_flags_as_they_are_written(vllm: Path, line: Block) -> None:
    arguments = shlex.split(line.text.replace("\\\n", " "))[2:]

    done = subprocess.run(
        [vllm.with_name("python"), "-c", PARSE, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "zmq"
