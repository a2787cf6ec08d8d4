"""`inferway bench prompts`, from what it needs to the whole run."""

from __future__ import annotations

import shlex
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from inferway import __version__
from inferway.prompts.prepare import cache_dir
from inferway_bench import chats
from inferway_bench.machine import command_line, this_machine
from inferway_bench.progress import OnStep
from inferway_bench.prompts.asking import Interpreters
from inferway_bench.prompts.chat_rows import ChatRows
from inferway_bench.prompts.models import gather_models
from inferway_bench.prompts.plan import Plan
from inferway_bench.prompts.results import PromptsRun
from inferway_bench.prompts.template_rows import loading_rows, render_rows
from inferway_bench.prompts.turns import Workers
from inferway_bench.venvs import install_venv

TRANSFORMERS = "5.19.0"  # what vLLM 0.32 has


def run_prompts(
    data: Path, plan: Plan, on_step: OnStep, interpreters: Interpreters | None = None
) -> PromptsRun:
    """Measure with the chats in `data`; without `interpreters`, beside
    transformers in a venv of its own.

    Raises BenchError, with the cure, when something cannot be had or the systems disagree.
    """
    conversations = chats.load_conversations(data / "chat")
    machine = this_machine()
    interpreters = interpreters or Interpreters(install_transformers(on_step))
    with TemporaryDirectory(prefix="inferway-prompts-") as name:
        work = Path(name)
        models = gather_models(work, on_step, npm=plan.npm)
        workers = Workers(interpreters, work, on_step)
        rows = [
            *ChatRows(plan, conversations, models, workers).rows(),
            *render_rows(models, workers, plan.render_rounds),
            *loading_rows(models, workers, max(2, plan.fresh_processes // 2)),
        ]
    return PromptsRun(
        machine=machine,
        command=shlex.join(command_line()),
        versions={"inferway": __version__, "transformers": TRANSFORMERS, **_libraries()},
        seed=plan.seed,
        text=f"{len(conversations):,} real conversations of {data.name}/chat, in an order drawn "
        "once, joined until they are long enough",
        left_out=[] if plan.npm else ["the fallback tokenizer and large vocabularies (--no-npm)"],
        rows=rows,
    )


def install_transformers(on_step: OnStep) -> Path:
    """The interpreter that has transformers, with the same libraries below it and no torch."""
    same = [f"{name}=={version(name)}" for name in ("tokenizers", "jinja2")]
    wanted = [f"transformers=={TRANSFORMERS}", *same]
    cure = "let this machine reach PyPI: the comparison is the benchmark"
    venv = install_venv(cache_dir() / "transformers", wanted, on_step, cure)
    return venv.executable("python")


def _libraries() -> dict[str, str]:
    return {name: version(name) for name in ("tokenizers", "fastokens", "jinja2")}
