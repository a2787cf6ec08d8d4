"""What users write for an engine, run in it (vLLM 0.32's interfaces):

--logits-processors tests.engines.steering:Steering
    `vllm_xargs: {"ban": 28}` keeps token 28 out, `{"force": [5, 8]}` writes 5 as the ninth token
--logits-processors tests.engines.steering:Reciting
    what follows on a prompt is written in a file, to which the variable RECITED leads:
    `{"start": 40, "ids": [5, 8]}` has 5 and 8 come after the first 40 tokens of prompt and answer
--reasoning-parser-plugin tests/engines/steering.py --reasoning-parser file-sep
    SmolLM2 does not reason; what comes before its token <file_sep> is taken for it
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Steering(AdapterLogitsProcessor):  # type: ignore[misc]
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        steered = params.extra_args or {}
        banned = steered.get("ban")
        forced, at = steered.get("force", (None, -1))
        if banned is None and forced is None:
            return None

        def steer(output: list[int], logits: Any) -> Any:
            if banned is not None:
                logits[banned] = float("-inf")
            if len(output) == at:
                logits[:] = float("-inf")
                logits[forced] = 0.0
            return logits

        return steer


class Reciting(AdapterLogitsProcessor):  # type: ignore[misc]
    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        del params  # all requests are told
        recited = json.loads(Path(os.environ["RECITED"]).read_text())
        start, ids = recited["start"], recited["ids"]

        def recite(prompt: list[int], output: list[int], logits: Any) -> Any:
            at = len(prompt) + len(output) - start
            if 0 <= at < len(ids):
                logits[:] = float("-inf")
                logits[ids[at]] = 0.0
            return logits

        return recite


@ReasoningParserManager.register_module("file-sep")
class FileSep(DeepSeekR1ReasoningParser):  # type: ignore[misc]
    @property
    def start_token(self) -> str:
        return "<repo_name>"

    @property
    def end_token(self) -> str:
        return "<file_sep>"
