"""`inferway bench structured`, from what it needs to the whole run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from inferway_bench.machine import command_line, this_machine
from inferway_bench.processes import BenchError, with_sources
from inferway_bench.structured.judge import Judge
from inferway_bench.structured.plan import Plan
from inferway_bench.structured.results import Schema, StructuredRun, System
from inferway_bench.structured.sample import Case, read
from inferway_bench.structured.systems import BESIDE_ENGINE, SYSTEMS, vocabulary_of

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
    systems = _judged(plan, engine, model, cases, on_progress)
    on_progress("masks of many answers", 0, 1)
    return StructuredRun(
        machine=machine,
        command=shlex.join(command_line()),
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


def _judged(
    plan: Plan, engine: Path, model: Path, cases: list[Case], on_progress: OnProgress
) -> list[System]:
    """They take turns schema by schema, each time another first: a machine that becomes slower is
    so for all of them."""
    with ExitStack() as stack:
        on_progress("starting", 0, 1)
        judges = [
            stack.enter_context(
                Judge(name, engine if name in BESIDE_ENGINE else Path(sys.executable), plan, model)
            )
            for name in SYSTEMS
        ]
        for done, case in enumerate(cases):
            on_progress("schemas", done, len(cases))
            first = done % len(judges)
            for judge in [*judges[first:], *judges[:first]]:
                judge.judge(case)
        return [judge.system for judge in judges]


def _batch(whose: str, python: Path, plan: Plan, model: Path) -> dict[str, float]:
    sizes = [str(plan.batch_rows), str(plan.batch_repeats)]
    words = [str(python), "-m", "inferway_bench.structured.batch", whose, str(model), *sizes]
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
        words, capture_output=True, text=True, env=with_sources(), check=False, timeout=600
    )
    if done.returncode != 0:
        raise BenchError(
            f"{' '.join(words[:4])}: ended with {done.returncode}: {done.stderr[-500:]}"
        )
    return done.stdout
