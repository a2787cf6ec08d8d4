"""What the plugin needs of vLLM, looked up in vLLM's source without running it.

`python -m structured.tests.vllm.signatures record 0.33.0 …` writes what these versions have into
signatures.json beside this file; `… newest` compares the newest release with what the plugin needs
(`make newest-vllm`), and ends with 1 where it does not fit. Both download the wheel from PyPI.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferway_structured.vllm.fit import Feature
from inferway_structured.vllm.install import (
    BUILD_APP,
    NEWEST,
    core_patches,
    front_patches,
    optional_features,
    server_features,
)

FILE = Path(__file__).with_name("signatures.json")

# What a version has: "module:path" -> a function's parameters, or None for an attribute.
Found = Mapping[str, Sequence[str] | None]

# What is read of vLLM's objects, beside the functions that are replaced.
READ = {
    "vllm.engine.arg_utils": ["EngineArgs.create_engine_config"],
    "vllm.v1.structured_output": [
        *("StructuredOutputManager.backend", "StructuredOutputManager.tokenizer"),
        *("StructuredOutputManager.vllm_config", "ConstraintBounds.constraint_start"),
        "StructuredOutputManager._use_async_grammar_compilation",
    ],
    "vllm.v1.structured_output.request": ["StructuredOutputRequest.grammar"],
    "vllm.v1.structured_output.backend_types": [
        *("StructuredOutputGrammar", "StructuredOutputBackend")
    ],
    "vllm.v1.engine.core": ["EngineCore.structured_output_manager"],
    "vllm.v1.engine.async_llm": ["AsyncLLM.engine_core", "AsyncLLM.vllm_config"],
    "vllm.v1.engine.core_client": ["AsyncMPClient.call_utility_async"],
    "vllm.v1.request": [
        *("Request.request_id", "Request.num_tokens", "Request.status"),
        *("Request.sampling_params", "Request.structured_output_request"),
        *("RequestStatus.WAITING", "RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"),
    ],
    "vllm.v1.core.sched.scheduler": [
        *("Scheduler.requests", "Scheduler.connector", "Scheduler.block_size"),
        *("Scheduler.scheduler_config", "Scheduler.kv_cache_manager"),
        "Scheduler.structured_output_manager",
    ],
    "vllm.v1.core.kv_cache_manager": [
        *("KVCacheManager.usage", "KVCacheManager.get_computed_blocks")
    ],
    "vllm.sampling_params": [
        *("SamplingParams.all_stop_token_ids", "SamplingParams.structured_outputs"),
        "StructuredOutputsParams._backend",
    ],
    "vllm.config.structured_outputs": [
        *("StructuredOutputsConfig.backend", "StructuredOutputsConfig.disable_any_whitespace"),
        "StructuredOutputsConfig.disable_additional_properties",
    ],
    "vllm.config.scheduler": [
        *("SchedulerConfig.enable_chunked_prefill", "SchedulerConfig.async_scheduling")
    ],
    "vllm.config.speculative": ["SpeculativeConfig.num_speculative_tokens"],
    "vllm.config.model": ["ModelConfig.get_vocab_size", "ModelConfig.skip_tokenizer_init"],
    "vllm.exceptions": ["VLLMValidationError.__init__"],
}


def features() -> list[Feature]:
    """The first is what structured output cannot do without."""
    no_front: Any = None  # the wrappers are not called here
    return [
        Feature("structured output", [*core_patches(), *front_patches(no_front)]),
        *optional_features(),
        *server_features(),
    ]


def misfits(found: Found) -> dict[str, list[str]]:
    """By feature, the functions that are missing or have other parameters."""
    wrong: dict[str, list[str]] = {feature.name: [] for feature in features()}
    for feature in features():
        for patch in feature.patches:
            name, known = f"{patch.module}:{patch.path}", patch.parameters
            has = found.get(name)
            if has is None or (known is not None and [*has[: len(known)]] != [*known]):
                wrong[feature.name].append(f"{name}({', '.join(has or ())})")
    return wrong


def unread(found: Found) -> list[str]:
    """What is read and is not there."""
    missing = [name for name in _read_names() if name not in found]
    if not any(f"{module}:build_app" in found for module in BUILD_APP):
        missing.append(f"{' or '.join(BUILD_APP)}:build_app")
    return missing


def _read_names() -> list[str]:
    return [f"{module}:{path}" for module, paths in READ.items() for path in paths]


def read(sources: zipfile.ZipFile) -> dict[str, list[str] | None]:
    """Of a wheel of vLLM."""
    patches = [patch for feature in features() for patch in feature.patches]
    names = {f"{patch.module}:{patch.path}" for patch in patches}
    names.update(_read_names(), [f"{module}:build_app" for module in BUILD_APP])
    found = {}
    for name in sorted(names):
        module, path = name.split(":")
        tree = _tree(sources, module)
        for node in _defined(tree, path.split(".")) if tree else ():
            found[name] = _parameters(node)
    return found


def _tree(sources: zipfile.ZipFile, module: str) -> ast.Module | None:
    file = module.replace(".", "/")
    for name in (f"{file}.py", f"{file}/__init__.py"):
        if name in sources.NameToInfo:
            return ast.parse(sources.read(name))
    return None


def _defined(tree: ast.AST, path: list[str]) -> Iterator[ast.AST]:
    """Where `path` is defined: a class, a function, an import, or an assignment, to `self` as
    well."""
    name, *rest = path
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _DEFINITIONS) and node.name == name:
            yield from _defined(node, rest) if rest else [node]
    if not rest:
        yield from (node for node in ast.walk(tree) if _assigns(node, name))


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _assigns(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any((alias.asname or alias.name) == name for alias in node.names)
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return any(
        (isinstance(target, ast.Name) and target.id == name)
        or (isinstance(target, ast.Attribute) and target.attr == name)
        for target in targets
    )


def _parameters(node: ast.AST) -> list[str] | None:
    """Of a class, its abstract methods."""
    if isinstance(node, ast.ClassDef):
        return [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return None


def recorded() -> dict[str, dict[str, list[str] | None]]:
    """By version, oldest first."""
    found: dict[str, dict[str, list[str] | None]] = json.loads(FILE.read_text())
    return found


def _downloaded(version: str | None) -> tuple[str, dict[str, list[str] | None]]:
    """None: the newest release."""
    wanted = f"vllm=={version}" if version else "vllm"
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        pip += ["--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--no-cache-dir", wanted]
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return wheel.name.split("-")[1], read(zipfile.ZipFile(wheel))


def main(command: str, *versions: str) -> int:
    if command == "record":
        before = recorded() if FILE.exists() else {}
        found = {**before, **dict(map(_downloaded, versions))}
        lines = [f"{json.dumps(v)}: {json.dumps(found[v])}" for v in sorted(found)]
        FILE.write_text("{" + ",\n".join(lines) + "}\n")
        return 0
    version, has = _downloaded(None)
    wrong = {name: parts for name, parts in misfits(has).items() if parts}
    print(f"vLLM {version}; the plugin is tested up to {'.'.join(map(str, NEWEST))}")
    for name, parts in wrong.items():
        print(f"does not fit: {name}: {', '.join(parts)}")
    for missing in unread(has):
        print(f"is missing: {missing}")
    return 1 if wrong or unread(has) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
