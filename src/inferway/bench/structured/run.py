"""`inferway bench structured`, from what it needs to the whole run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

import inferway
from inferway.bench.machine import this_machine
from inferway.bench.processes import BenchError
from inferway.bench.structured.plan import Plan
from inferway.bench.structured.results import Judged, Schema, StructuredRun, System, masks_of
from inferway.bench.structured.sample import Case, read
from inferway.bench.structured.systems import BESIDE_ENGINE, SYSTEMS, vocabulary_of

# What is under way, schemas done, of how many.
OnProgress = Callable[[str, int, int], None]

_PACKAGES = ("llguidance", "outlines_core", "jsonschema_rs")
_ENGINES = ("vllm", "xgrammar")


def run_structured(plan: Plan, file: Path, model: Path, on_progress: OnProgress) -> StructuredRun:
    """Raises BenchError, with the cure."""
    machine = this_machine()
    engine = _engine()
    if not (model / "tokenizer.json").is_file():
        raise BenchError(f"{model}: no tokenizer.json; the cure: --model with a model's directory")
    on_progress("tokenizing", 0, 1)
    vocabulary = vocabulary_of(str(model))
    cases = read(file, vocabulary.ll_tokenizer.tokenize_str, plan.max_tokens, plan.max_schemas)
    systems = []
    for name in SYSTEMS:
        python = engine if name in BESIDE_ENGINE else Path(sys.executable)
        systems.append(_judge(name, python, plan, model, cases, on_progress))
    on_progress("masks of many answers", 0, 1)
    return StructuredRun(
        machine=machine,
        command=shlex.join(["inferway", *sys.argv[1:]]),
        file=file.name,
        tokenizer=model.name,
        plan=plan,
        versions={name: version(name) for name in _PACKAGES} | _versions(engine),
        schemas=[Schema(case.id, [one.valid for one in case.instances]) for case in cases],
        systems=systems,
        batch_ms={
            "inferway": _batch("ours", Path(sys.executable), plan, model),
            "xgrammar": _batch("xgrammar", engine, plan, model),
        },
        load_after=round(os.getloadavg()[0], 2),
    )


def _engine() -> Path:
    """The Python that has vLLM and xgrammar."""
    root = os.environ.get("INFERWAY_VLLM_VENV")
    python = Path(root) / "bin" / "python" if root else None
    if python is None or not python.is_file():
        raise BenchError(
            "xgrammar is measured where vLLM is installed; the cure: INFERWAY_VLLM_VENV=/its/venv"
        )
    return python


def _judge(
    name: str, python: Path, plan: Plan, model: Path, cases: list[Case], on_progress: OnProgress
) -> System:
    seconds = plan.outlines_seconds if name.startswith("outlines") else plan.compile_seconds
    command = [python, "-m", "inferway.bench.structured.worker", name, model, seconds]
    judged, mask_ns = [], []
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
        asked.writelines(msgspec.json.encode(case) + b"\n" for case in cases)
        asked.seek(0)
        with subprocess.Popen(
            [*map(str, command), str(plan.memory_gib)],
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=said,
            env=_environment(),
        ) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                found = json.loads(line)
                mask_ns += found.pop("mask_ns", [])
                judged.append(msgspec.convert(found, Judged))
                on_progress(name, len(judged), len(cases))
        if len(judged) != len(cases):
            said.seek(0)
            tail = said.read()[-800:].decode(errors="replace")
            raise BenchError(f"{name}: its worker ended with {worker.returncode}: {tail}")
    wall, own = ([one[which] for one in mask_ns] for which in (0, 1))
    return System(name, masks_of(wall), judged, masks_of(own))


def _batch(whose: str, python: Path, plan: Plan, model: Path) -> dict[str, float]:
    sizes = [str(plan.batch_rows), str(plan.batch_repeats)]
    words = [str(python), "-m", "inferway.bench.structured.batch", whose, str(model), *sizes]
    found: dict[str, float] = json.loads(_said(words).splitlines()[-1])
    return found


def _versions(engine: Path) -> dict[str, str]:
    code = (
        "import json; from importlib.metadata import version;"
        f"print(json.dumps({{name: version(name) for name in {_ENGINES!r}}}))"
    )
    found: dict[str, str] = json.loads(_said([str(engine), "-c", code]))
    return found


def _said(words: list[str]) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, env=_environment(), check=False, timeout=600
    )
    if done.returncode != 0:
        raise BenchError(
            f"{' '.join(words[:4])}: ended with {done.returncode}: {done.stderr[-500:]}"
        )
    return done.stdout


def _environment() -> dict[str, Any]:
    return {**os.environ, "PYTHONPATH": str(Path(inferway.__file__).parents[1])}
