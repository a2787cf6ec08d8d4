"""What the gateway does with each version of vLLM, measured against that version's own code: the
table of docs/compatibility.md, and docs/results/compatibility.json that it is made of.

    INFERWAY_VLLM_VENV=/path .venv/bin/python -m tests.engines.compatibility --write [NAME …]

measures all rows anew, or those whose names contain a NAME, and writes both (10 minutes). A row is
one entry of ROWS: its group in the table, a name, and a function that measures it.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from structured.tests.vllm.signatures import misfits, recorded
from tests.engines.vllm_code import INSTALLED, ROOT, SOURCES, VllmCode, code_of
from tests.openai_api.test_vllm_verdicts import VERDICTS, refusal
from tests.stored import rows as stored_rows

from inferway.config import ModelSettings
from inferway.errors import RenderError
from inferway.fleet.engine_facts import NEWEST_VLLM, EngineFacts, ModelCard
from inferway.fleet.tokens_once import OLDEST_FOLLOWED
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.version_rules import VersionRules

RESULT = ROOT / "docs" / "results" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- compatibility -->", "<!-- end of compatibility -->"

GOLDEN = ROOT / "tests" / "golden"
MODEL = str(ROOT / "src" / "inferway_sim" / "smollm2")
RECORDER_SECONDS = 600

INSTALLED_VERSION = "0.32.0"  # scripts/install_vllm.sh has it
VERSIONS: Mapping[str, str] = {INSTALLED_VERSION: INSTALLED, **{each: each for each in SOURCES}}
MIXED = "both in one fleet"

_CALL_ID = re.compile(r"call_\d{10}")  # which vLLM makes of the time

Cells = Mapping[str, str]  # by version, and MIXED
Measure = Callable[[Mapping[str, VllmCode]], Cells]


class Row(NamedTuple):
    """One line of the table."""

    group: str
    name: str
    measure: Measure


# what vLLM's code makes of stored requests


def rows_of(file: Path) -> Any:
    """All but what depends on the time, and the version that has written them."""
    if file.suffix == ".json":
        return json.loads(file.read_text())
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        found = [json.loads(_CALL_ID.sub("call_", line)) for line in lines]
    found[0].get("meta", {}).pop("engine", None)
    return found


def recorded_cells(
    recorder: str, pattern: str, codes: Mapping[str, VllmCode], *, asks_for_model: bool = True
) -> Cells:
    """The unit tests hold the gateway's code against each stored file to the letter. So it is exact
    for a version that makes that file again."""
    written = {
        version: _again(recorder, pattern, codes[version], asks_for_model) for version in codes
    }
    cells = {version: outcome for version, (_, outcome) in written.items()}
    is_one = len({name for name, _ in written.values()}) == 1
    differs = next((cell for cell in cells.values() if cell != "exact"), None)
    cells[MIXED] = differs or ("exact" if is_one else "exact; by load where the versions differ")
    return cells


def _again(recorder: str, pattern: str, code: VllmCode, asks_for_model: bool) -> tuple[str, str]:
    """Record in a copy, for a recorder writes beside itself; return the file's name, and the
    outcome."""
    of = GOLDEN / Path(recorder).parent
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "tests" / "golden" / of.name
        shutil.copytree(of, folder)
        (Path(made) / "tests" / "data").symlink_to(ROOT / "tests" / "data")
        before = {file: file.stat().st_mtime_ns for file in folder.glob(pattern)}
        arguments = [Path(recorder).name, *([MODEL] if asks_for_model else [])]
        code.run(arguments, cwd=folder, seconds=RECORDER_SECONDS)
        [file] = [each for each in before if each.stat().st_mtime_ns != before[each]]
        expected, found = rows_of(of / file.name), rows_of(file)
    if expected == found:
        return file.name, "exact"
    num_rows = sum(a != b for a, b in zip(expected, found, strict=False))
    return file.name, f"differs in {num_rows + abs(len(expected) - len(found))} of {len(expected)}"


def verdict_cells(codes: Mapping[str, VllmCode]) -> Cells:
    """Which bodies vLLM's request classes take, beside what the gateway takes."""
    cells = {}
    stored = lzma.decompress(VERDICTS.read_bytes())
    on_purpose = sum(row["taken"] and refusal(row) is not None for row in stored_rows(VERDICTS))
    for version, code in codes.items():
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "verdicts"
            code.run(["-m", "tests.engines.record_verdicts", str(file)])
            is_same = lzma.decompress(file.read_bytes()) == stored
        cells[version] = f"exact, but {on_purpose} refused on purpose" if is_same else "differs"
    [*every] = set(cells.values())
    return {**cells, MIXED: every[0] if len(every) == 1 else "differs"}


# what follows from the version that an engine tells


def rule_cells(depends: Callable[[VersionRules], object], codes: Mapping[str, VllmCode]) -> Cells:
    """Of what versions do otherwise: whether the gateway follows each, and what it does with
    engines that do not agree."""
    numbers = {version: _number(version) for version in codes}
    cells = {v: _followed(depends, VersionRules.of([number])) for v, number in numbers.items()}
    return {**cells, MIXED: _followed(depends, VersionRules.of(numbers.values()))}


def _followed(depends: Callable[[VersionRules], object], rules: VersionRules) -> str:
    try:
        depends(rules)
    except RenderError:
        return "by load"
    return "exact"


def plugin_cells(codes: Mapping[str, VllmCode]) -> Cells:
    known, cells = recorded(), {}
    for version in codes:
        missing = [name for name, parts in misfits(known[version]).items() if parts]
        cells[version] = f"fits, without {', '.join(missing)}" if missing else "fits"
    return {**cells, MIXED: "each engine for itself"}


def token_id_cells(codes: Mapping[str, VllmCode]) -> Cells:
    """Whether an engine gets token ids in place of text (docs/fidelity.md)."""
    cells = {}
    for version in codes:
        number = _number(version)
        cells[version] = "yes" if OLDEST_FOLLOWED <= number <= NEWEST_VLLM else "no"
    return {**cells, MIXED: "each engine for itself"}


def newer_cells(codes: Mapping[str, VllmCode]) -> Cells:
    """Whether the log and `inferway doctor` name the version as newer than the newest known."""
    card = ModelCard("m", None, None, None, "vllm")
    cells = {}
    for version in codes:
        facts = EngineFacts((card,), (), 16, (), version)
        cells[version] = "no" if facts.newer_than_known is None else "yes"
    return {**cells, MIXED: "each engine for itself"}


def _number(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


# Templates that keep messages in namespaces, and some that only look like it.
_PARTS = "{% for m in ns.rest %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"
_IN_NAMESPACES = [
    "{% set ns = namespace(rest=messages) %}" + _PARTS,
    "{% set ns = namespace(rest=messages[1:], other=1) %}" + _PARTS,
    "{% set ns = namespace() %}{% set ns.rest = messages | list %}" + _PARTS,
    "{% set ns = namespace(all=messages) %}{% set ns.rest = ns.all %}" + _PARTS,
    "{% set ns = namespace(rest=messages) %}{% set m2 = ns.rest %}{% for m in m2 %}"
    "{% for c in m['content'] %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(rest=tools) %}" + _PARTS,
    "{% set ns = namespace(last=messages) %}" + _PARTS,
    "{% set other = namespace(rest=messages) %}" + _PARTS,
    "{% set a, b = messages, 1 %}{% for m in messages %}{% for c in m.content %}{% endfor %}"
    "{% endfor %}",
    "{% set ns = namespace() %}{% set ns.x = messages %}{% for m in messages %}"
    "{% for c in m.content %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% for i, m in ns.rest %}{% endfor %}",
]
_DETECT = """
import json, sys
from vllm.renderers import hf
detect = hf._detect_content_format.__wrapped__
print(json.dumps([detect(source, default="string") for source in json.load(sys.stdin)]))
"""


def namespace_cells(codes: Mapping[str, VllmCode]) -> Cells:
    """The form of content of templates that keep messages in namespaces, as each version says."""
    templates = [ChatTemplate(source) for source in _IN_NAMESPACES]
    cells: dict[str, str] = {}
    for version, code in codes.items():
        printed = code.run(["-c", _DETECT], given=json.dumps(_IN_NAMESPACES))
        rules = VersionRules.of([_number(version)])
        ours = [rules.content_format(ModelSettings(), each) for each in templates]
        theirs = json.loads(printed.splitlines()[-1])
        differ = sum(a != b for a, b in zip(ours, theirs, strict=True))
        cells[version] = f"differs in {differ} of {len(ours)}" if differ else "exact"
    mixed = VersionRules.of([*map(_number, codes)])
    [either, *_] = templates
    return {
        **cells,
        MIXED: _followed(lambda rules: rules.content_format(ModelSettings(), either), mixed),
    }


def _recorded(group: str, name: str, recorder: str, pattern: str, *, model: bool = True) -> Row:
    return Row(group, name, partial(recorded_cells, recorder, pattern, asks_for_model=model))


# what an engine reuses of its caches

_LOOK_UPS = 60  # of each case

# Kinds of caches, and what of a case's name (tests/engines/cache_oracle.py) shows them: the first
# that is found.
CACHES: Mapping[str, re.Pattern[str]] = {
    "look-ahead hashes for drafts (EAGLE, MTP)": re.compile("look-ahead"),
    "drafts that drop the last block (EAGLE, MTP)": re.compile("eagle"),
    "retention intervals": re.compile("kept"),
    "hits that end within a block (--prefix-match-unit)": re.compile("hash finer"),
    "adapters and salts": re.compile("adapters"),
    "state-space layers, mode all": re.compile("mamba all"),
    "state-space layers (Mamba, GDN), mode align": re.compile("mamba"),
    "chunked local attention without full attention": re.compile("local alone"),
    "chunked local attention": re.compile("local"),
    "full attention with sinks": re.compile("sink"),
    "blocks of unequal sizes": re.compile("32|64.*window|full 16"),
    "sliding windows": re.compile("window"),
    "full attention, MLA": re.compile(""),
}


# Cases of which events do not tell enough, as a longer history shows: local attention without full
# attention reuses chunks that were never computed.
NOT_TOLD = ("local alone",)


@cache
def _look_ups(code: VllmCode) -> Sequence[Mapping[str, Any]]:
    """What the oracle says of all of its cases."""
    arguments = ["-m", "tests.engines.cache_oracle", "--steps", str(_LOOK_UPS), "--seeds", "1"]
    printed = code.run(arguments, seconds=1200)
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def cache_cells(kind: str, codes: Mapping[str, VllmCode]) -> Cells:
    """Whether what is believed before each look-up is what vLLM's cache manager finds."""
    cells = {}
    for version, code in codes.items():
        found = [case for case in _look_ups(code) if _kind(case["case"]) == kind]
        cells[version] = _outcome([case for case in found if "cannot" not in case])
    return {**cells, MIXED: "each engine for itself"}


def _kind(name: str) -> str:
    return next(kind for kind, pattern in CACHES.items() if pattern.search(name))


def _outcome(cases: Sequence[Mapping[str, Any]]) -> str:
    if not cases:
        return "vLLM has none"
    if any(case["too_much"] or case["unequal_while_exact"] for case in cases):
        return "too much is believed"
    if any(case["case"] in NOT_TOLD for case in cases):
        return "never too much"
    return "never too much" if any(case["too_little"] for case in cases) else "exact"


PROMPTS, REQUESTS, ENGINES, REUSE = "prompts", "requests", "engines", "reuse"

ROWS: Sequence[Row] = (
    _recorded(
        *(PROMPTS, "chats: 327 bodies, 24 templates"),
        *("prompts/record_vllm_chats.py", "vllm_chats.jsonl.gz"),
    ),
    _recorded(
        *(PROMPTS, "chats of engines with flags that shape prompts"),
        *("prompts/record_vllm_flags.py", "vllm_flags.jsonl.gz"),
    ),
    _recorded(
        *(PROMPTS, "chats that bring or name a template: 876 bodies"),
        *("prompts/record_vllm_names.py", "vllm_names.jsonl.gz"),
    ),
    _recorded(
        *(PROMPTS, "/v1/responses: 108 bodies, 24 templates"),
        *("prompts/record_vllm_responses.py", "vllm_responses.jsonl.gz"),
    ),
    _recorded(
        *(PROMPTS, "/v1/messages: 143 bodies, 24 templates"),
        *("prompts/record_vllm_messages.py", "vllm_messages.jsonl.gz"),
    ),
    _recorded(
        *(PROMPTS, "form of content: 347 real templates"),
        *("prompts/record_vllm_formats.py", "vllm_formats.json"),
        model=False,
    ),
    Row(
        *(PROMPTS, "form of content: 11 templates with namespaces"),
        namespace_cells,
    ),
    _recorded(
        *(PROMPTS, "truncated prompts: 648 of them"),
        *("prompts/record_vllm_truncation.py", "vllm_truncation*.jsonl.gz"),
        model=False,
    ),
    Row(
        *(PROMPTS, "truncated to the context, without a length of the answer"),
        partial(rule_cells, lambda rules: rules.leaves_room(None)),
    ),
    _recorded(
        *(PROMPTS, "texts that are compared: 161 bodies, 2 tokenizers, 4 ways"),
        *("prompts/record_vllm_scores.py", "vllm_scores.jsonl.gz"),
        model=False,
    ),
    _recorded(
        *(PROMPTS, "whether the cache is read: 234 bodies"),
        *("openai_api/record_vllm_cache_reads.py", "vllm_cache_reads.json"),
        model=False,
    ),
    Row(REQUESTS, "what is refused: 2,512 odd bodies", verdict_cells),
    _recorded(
        *(REQUESTS, "answers at /v1/messages, streamed and whole"),
        *("openai_api/record_vllm_messages.py", "vllm_messages.json"),
        model=False,
    ),
    *[Row(REUSE, kind, partial(cache_cells, kind)) for kind in [*CACHES][::-1]],
    Row(ENGINES, "token ids in place of text", token_id_cells),
    Row(ENGINES, "Inferway's structured output, as a plugin", plugin_cells),
    Row(ENGINES, "named as newer than the newest known", newer_cells),
)


# the table


def stored() -> Mapping[str, Cells]:
    """The cells that were measured last, by the names of their rows."""
    found: dict[str, Cells] = json.loads(RESULT.read_text())
    return found


def table(cells: Mapping[str, Cells]) -> str:
    columns = [*VERSIONS, MIXED]
    lines = ["| " + " | ".join(["", "", *(f"vLLM {v}" for v in VERSIONS), MIXED]) + " |"]
    lines.append("|" + "---|" * (len(columns) + 2))
    for row in ROWS:
        found = [cells[row.name][column] for column in columns]
        lines.append("| " + " | ".join([row.group, row.name, *found]) + " |")
    return "\n".join(lines) + "\n"


def page_with(text: str, cells: Mapping[str, Cells]) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(cells)}{END}{after}"


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] != ["--write"]:
        sys.exit("usage: python -m tests.engines.compatibility --write [NAME …]")
    venv = Path(os.environ.get("INFERWAY_VLLM_VENV", ROOT / ".venv-vllm"))
    codes = {version: code_of(of, venv / "bin" / "vllm") for version, of in VERSIONS.items()}
    cells = dict(stored()) if RESULT.exists() else {}
    for row in ROWS:
        if len(arguments) == 1 or any(name in row.name for name in arguments[1:]):
            cells[row.name] = row.measure(codes)
            print(row.name, dict(cells[row.name]), flush=True)
    kept = {row.name: cells[row.name] for row in ROWS}
    RESULT.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(page_with(PAGE.read_text(), kept))


if __name__ == "__main__":
    main(sys.argv[1:])
