"""All real tokenizers that we can get against transformers: `python -m tests.prompts.fidelity`.

    --only NAME …   these alone, and nothing is written
    --texts N       texts drawn at random for each tokenizer (500)

For each: is the tokenizer that we build, part by part, the one that transformers builds? Are ids
(with and without special tokens) and offsets the same for every text? Writes
docs/results/fidelity.json; leaves with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tests.prompts.texts import drawn_texts
from tests.prompts.transformers_oracle import load_theirs, parts
from tests.stored import TOKENIZERS, conversations, token_vectors, tokenizer_json

from inferway.doctor.machine import cache_dir
from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.tokenizer.engine_tokenizer import build_engine_tokenizer
from inferway.prompts.tokenizer.token_cache import GRID
from inferway.prompts.tokenizer.tokenizer import CHECK_TEXTS, Tokenizer
from inferway_sim.prepare import prepare_smollm2

ROOT = Path(__file__).parents[2]
NPM = ROOT / "tests" / "prompts" / "npm_tokenizers.json"
RESULTS = ROOT / "docs" / "results" / "fidelity.json"

# Classes that build the tokenizer anew, each of a vocabulary that suits it.
REBUILT = {
    "CodeLlamaTokenizer": "llama2",
    "CohereTokenizer": "command_r_plus",
    "GPT2Tokenizer": "starcoder",
    "GPTNeoXTokenizer": "gpt-2",
    "GemmaTokenizer": "gemma",
    "LlamaTokenizer": "llama2",
    "Qwen2Tokenizer": "deepseek_v3",
    "Qwen3_5Tokenizer": "qwen3",
    "T5Tokenizer": "t5-small",
}

CHATS = ("oasst1_en_threads", "tau_bench_airline_gpt4o", "glaive_toolcall_en_zh", "kdconv_zh")


@dataclass(frozen=True, slots=True)
class Compared:
    name: str
    tokenizer_class: str  # transformers', for these files
    encoder: str
    why: str
    load_cpu_seconds: float
    same_parts: bool  # pipeline, model, added tokens, special tokens
    texts: int
    ids_differ: int  # texts, with or without special tokens
    offsets_differ: int
    recorded: int  # llama.cpp's vectors for this tokenizer
    recorded_differ: int
    growing_differ: int  # as a text grows whose start is remembered


def model_directories(work: Path, only: set[str]) -> Iterator[tuple[str, Path]]:
    """Name, and a directory with the files that vLLM would find."""
    originals = {}
    for name in TOKENIZERS:
        (work / name).mkdir()
        (work / name / "tokenizer.json").write_text(tokenizer_json(name))
        originals[name] = work / name
    originals["smollm2"] = prepare_smollm2()
    for name, known in json.loads(NPM.read_text()).items():
        cached = cache_dir() / "npm" / f"{name}-3.7.2"
        if cached.is_dir() or not only:
            originals[name] = work / name
            shutil.copytree(cached, work / name)
            config = {"model_type": known["model_type"]} if known["model_type"] else {}
            (work / name / "config.json").write_text(json.dumps(config))
    yield from ((name, path) for name, path in originals.items() if not only or name in only)
    for tokenizer_class, name in REBUILT.items():
        if name in originals and (not only or tokenizer_class in only):
            directory = work / tokenizer_class
            shutil.copytree(originals[name], directory)
            (directory / "config.json").unlink(missing_ok=True)
            rename(directory / "tokenizer_config.json", tokenizer_class)
            yield f"{name} as {tokenizer_class}", directory


def rename(path: Path, tokenizer_class: str) -> None:
    config = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(config | {"tokenizer_class": tokenizer_class}))


def written_texts() -> list[str]:
    """Those of the check, llama.cpp's, and 600 messages of real chats."""
    texts = dict.fromkeys([*CHECK_TEXTS, *(row["text"] for row in token_vectors())])
    for chat in CHATS:
        messages = [
            message["content"] for row in conversations(chat) for message in row["messages"]
        ]
        real = [text for text in messages if isinstance(text, str)]
        texts |= dict.fromkeys(real[:: max(1, len(real) // 150)][:150])
    return list(texts)


def compare(name: str, directory: Path, texts: list[str], num_drawn: int) -> Compared:
    files = read_model_files(directory).tokenizer
    started = time.process_time()
    ours = Tokenizer(files)
    seconds = time.process_time() - started
    theirs = load_theirs(directory)
    built = build_engine_tokenizer(files)
    same_parts = parts(built.tokenizer) == parts(theirs.backend_tokenizer)
    same_parts = same_parts and built.special_tokens == theirs.special_tokens_map
    added = [token.content for token in built.tokenizer.get_added_tokens_decoder().values()]
    added = [content for content in added if content != built.not_followed]
    texts = [*texts, *drawn_texts(len(name), num_drawn, added)]
    recorded = [row for row in token_vectors() if row["model"] == name]
    return Compared(
        name=name,
        tokenizer_class=type(theirs).__name__,
        encoder=ours.encoder,
        why=ours.why,
        load_cpu_seconds=round(seconds, 2),
        same_parts=same_parts,
        texts=len(texts),
        ids_differ=sum(not same_ids(ours, theirs, text) for text in texts),
        offsets_differ=sum(not same_offsets(ours, theirs, text) for text in texts),
        recorded=len(recorded),
        recorded_differ=sum(
            ours.encode(row["text"], add_special_tokens=False).tolist() != row["ids"]
            for row in recorded
        ),
        growing_differ=num_growing_differ(ours, theirs, texts),
    )


def same_ids(ours: Tokenizer, theirs: Any, text: str) -> bool:
    return all(
        ours.encode(text, add_special_tokens=special).tolist()
        == theirs(text, add_special_tokens=special)["input_ids"]
        for special in (False, True)
    )


def same_offsets(ours: Tokenizer, theirs: Any, text: str) -> bool:
    ids, offsets = ours.encode_with_offsets(text, add_special_tokens=True)
    expected = theirs(text, add_special_tokens=True, return_offsets_mapping=True)
    expected_offsets = np.array(expected["offset_mapping"]).reshape(-1, 2).tolist()
    return bool(ids.tolist() == expected["input_ids"] and offsets.tolist() == expected_offsets)


def num_growing_differ(ours: Tokenizer, theirs: Any, texts: list[str]) -> int:
    """A text that grows to 60,000 characters, so that its start is remembered."""
    added = [token for token in theirs.added_tokens_encoder if "FILL_ME" not in token] or [" "]
    texts = [text for text in texts if "<FILL_ME>" not in text]  # by load only: not followed
    grown, differing = "", 0
    for i, text in enumerate(texts):
        grown += added[i % min(len(added), 20)] + text
        if len(grown) > GRID and i % 5 == 0:
            ids = ours.encode(grown, add_special_tokens=False).tolist()
            differing += ids != theirs(grown, add_special_tokens=False)["input_ids"]
        if len(grown) > 60_000:
            break
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--texts", type=int, default=500)
    arguments = parser.parse_args()
    texts = written_texts()
    rows: list[Compared] = []
    with tempfile.TemporaryDirectory() as work:
        for name, directory in model_directories(Path(work), set(arguments.only)):
            rows.append(row := compare(name, directory, texts, arguments.texts))
            differ = row.ids_differ + row.offsets_differ + row.recorded_differ
            differ += row.growing_differ
            exact = row.same_parts and not differ
            print(
                f"{name:32} {row.tokenizer_class:18} {row.encoder:10} {row.texts} texts"
                f" {'exact' if exact else row}",
                flush=True,
            )
    missed = [row.name for row in rows if not row.same_parts or row.ids_differ]
    missed += [row.name for row in rows if row.offsets_differ or row.growing_differ]
    if not arguments.only:
        packages = ("transformers", "tokenizers", "fastokens")
        results = {
            "versions": {package: version(package) for package in packages},
            "compared": [asdict(row) for row in rows],
        }
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    share = f"{sum(row.texts - row.ids_differ for row in rows)} of {sum(r.texts for r in rows)}"
    print(f"{len(rows)} tokenizers, ids of {share} texts exact; misses: {missed or 'none'}")
    return 1 if missed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
