"""The plugin as vLLM's processes load it: a fresh interpreter each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOADING = """
import json, sys
before = set(sys.modules)
from inferway_structured.vllm import register
register()
loaded = set(sys.modules) - before
print(json.dumps([one for one in loaded if one.split(".")[0] not in sys.stdlib_module_names]))
"""

# A vLLM of a few lines: what the plugin patches, as 0.32 has it.
VLLM = {
    "vllm/__init__.py": "__version__ = '0.32.0'",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
class Config:
    def __init__(self, additional_config):
        self.additional_config = additional_config
class EngineArgs:
    def __init__(self, **additional_config):
        self.additional_config = additional_config
    def create_engine_config(self, usage_context=None):
        return Config(self.additional_config)
""",
    "vllm/v1/__init__.py": "",
    "vllm/v1/structured_output/__init__.py": """
class StructuredOutputManager:
    def __init__(self, vllm_config):
        self.backend = None
    def grammar_init(self, request):
        return "stock"
""",
    "vllm/v1/engine/__init__.py": "",
    "vllm/v1/engine/async_llm.py": """
class AsyncLLM:
    async def add_request(self, request_id, prompt, params, arrival_time=None):
        return "stock"
""",
    "vllm/sampling_params.py": """
class SamplingParams:
    def _validate_structured_outputs(self, model_config, structured_outputs_config, tokenizer):
        return "stock"
""",
}
CONFIGURING = """
import json, logging, os, sys
logging.basicConfig(format="%(message)s")
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.structured_output import StructuredOutputManager as Manager
from inferway_structured.vllm import register
before = Manager.grammar_init
register()
register()
error = None
try:
    EngineArgs(**json.loads(sys.argv[1])).create_engine_config()
except Exception as e:
    error = f"{type(e).__name__}: {e}"
patched = Manager.grammar_init is not before
print(json.dumps([patched, os.environ.get("INFERWAY_STRUCTURED"), error]))
"""


def run(code: str, *arguments: str, path: Path | None = None, **more: str) -> tuple[Any, str]:
    """What the code printed, as JSON, and its log."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("INFERWAY_")}
    environment = {**kept, "PYTHONPATH": str(path or ""), **more}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def a_vllm(folder: Path, **changed: str) -> Path:
    """`changed`: files by the name before .py, in the place of those above."""
    for name, text in VLLM.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changed.get(file.stem, text))
    return folder


def test_switched_off_it_loads_nothing_but_its_switch() -> None:
    """Each of vLLM's processes pays for it, wanted or not."""
    loaded, _ = run(LOADING)

    vllm = "inferway_structured.vllm"
    own = ["inferway_structured", "inferway_structured.errors"]
    assert sorted(loaded) == [*own, vllm, f"{vllm}.settings", f"{vllm}.switch"]


def test_without_a_word_in_the_configuration_vllm_stays_as_it_is(tmp_path: Path) -> None:
    (patched, switch, error), log = run(CONFIGURING, "{}", path=a_vllm(tmp_path))

    assert (patched, switch, error, log) == (False, None, None, "")


def test_the_configuration_switches_it_on_here_and_in_processes_started_later(
    tmp_path: Path,
) -> None:
    settings = json.dumps({"inferway": {"structured": True}})

    (patched, switch, error), _ = run(CONFIGURING, settings, path=a_vllm(tmp_path))

    assert (patched, switch, error) == (True, "1", None)


def test_the_environment_switches_it_on_and_off(tmp_path: Path) -> None:
    vllm = a_vllm(tmp_path)
    settings = json.dumps({"inferway": {"structured": True}})

    (on, *_), _ = run(CONFIGURING, "{}", path=vllm, INFERWAY_STRUCTURED="1")
    (off, *_), _ = run(CONFIGURING, settings, path=vllm, INFERWAY_STRUCTURED="0")

    assert (on, off) == (True, False)


def test_a_vllm_that_differs_stays_stock_everywhere_and_one_line_says_why(tmp_path: Path) -> None:
    other = "class SamplingParams:\n    def _validate_structured_outputs(self, config): ..."
    vllm = a_vllm(tmp_path, sampling_params=other)

    (patched, switch, error), log = run(CONFIGURING, "{}", path=vllm, INFERWAY_STRUCTURED="1")

    assert (patched, switch, error) == (False, "0", None)
    (line,) = [line for line in log.splitlines() if "use vLLM's own structured output" in line]
    assert (
        "vllm.sampling_params.SamplingParams._validate_structured_outputs has the parameters "
        "(self, config), and the plugin knows it with (self, model_config, "
    ) in line
    assert "use vLLM 0.28 to 0.33" in line


def test_a_vllm_that_a_grammars_error_would_end_stays_stock(tmp_path: Path) -> None:
    vllm = a_vllm(tmp_path)
    (vllm / "vllm" / "__init__.py").write_text("__version__ = '0.24.0'")

    (patched, switch, _), log = run(CONFIGURING, "{}", path=vllm, INFERWAY_STRUCTURED="1")

    assert (patched, switch) == (False, "0")
    assert "an error of a grammar would end the engine core" in log


def test_what_cannot_be_patched_by_itself_is_left_out_by_itself_and_said_once(
    tmp_path: Path,
) -> None:
    """This vLLM has no scheduler: no overlap."""
    (patched, _, _), log = run(CONFIGURING, "{}", path=a_vllm(tmp_path), INFERWAY_STRUCTURED="1")

    assert patched
    (line,) = [line for line in log.splitlines() if "(overlap)" in line]
    assert "works without computing prompts while their grammars compile" in line
    assert "vllm.v1.core.sched.scheduler" in line
    assert "tested with vLLM 0.28 to 0.33" in line


def test_a_vllm_newer_than_the_tested_ones_is_named(tmp_path: Path) -> None:
    vllm = a_vllm(tmp_path)
    (vllm / "vllm" / "__init__.py").write_text("__version__ = '0.99.0'")

    (patched, *_), log = run(CONFIGURING, "{}", path=vllm, INFERWAY_STRUCTURED="1")

    assert patched
    assert "newer than those with which Inferway's structured output is tested (0.28 to" in log


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"sampling_params": "class SamplingParams:\n    def f(self): ..."},
            "SamplingParams._validate_structured_outputs cannot be found",
        ),
        ({"arg_utils": "class EngineArgs:\n    pass"}, "has no attribute 'create_engine_config'"),
    ],
    ids=["a function differs", "the plugin fails"],
)
def test_where_it_is_required_a_vllm_that_differs_does_not_start(
    tmp_path: Path, changed: dict[str, str], why: str
) -> None:
    vllm = a_vllm(tmp_path, **changed)

    with pytest.raises(subprocess.CalledProcessError) as ended:
        run(CONFIGURING, "{}", path=vllm, INFERWAY_STRUCTURED="required")

    last = ended.value.stderr.splitlines()[-1]
    assert ended.value.returncode == 1
    assert last.startswith("Inferway's structured output cannot be used, and it is required here")
    assert why in last
    assert "use vLLM's own structured output, because" not in ended.value.stderr
    assert "--allow-stock" in last


def test_where_it_is_required_processes_started_later_are_only_told_that_it_is_on(
    tmp_path: Path,
) -> None:
    (patched, switch, error), _ = run(
        CONFIGURING, "{}", path=a_vllm(tmp_path), INFERWAY_STRUCTURED="required"
    )

    assert (patched, switch, error) == (True, "1", None)


def test_an_error_in_the_plugin_leaves_vllm_as_it_is(tmp_path: Path) -> None:
    vllm = a_vllm(tmp_path, arg_utils="class EngineArgs:\n    pass")
    code = LOADING.replace("register()\nloaded", "import vllm.engine.arg_utils\nregister()\nloaded")

    _, log = run(code, path=vllm)

    assert "uses vLLM's own structured output, because Inferway's plugin could not be" in log


def test_a_setting_that_is_none_stops_the_start_and_names_those_there_are(tmp_path: Path) -> None:
    settings = json.dumps({"inferway": {"structured": True, "overlp": True}})

    (_, _, error), _ = run(CONFIGURING, settings, path=a_vllm(tmp_path))

    assert error.startswith(
        "ConfigError: additional_config: inferway: the key 'overlp' is unknown;"
    )
    assert "overlap" in error


def test_a_setting_of_another_type_stops_the_start(tmp_path: Path) -> None:
    settings = json.dumps({"inferway": {"structured": True, "overlap_held": "4"}})

    (_, _, error), _ = run(CONFIGURING, settings, path=a_vllm(tmp_path))

    assert error == (
        "ConfigError: additional_config: inferway: overlap_held: expected an integer, got '4'"
    )
