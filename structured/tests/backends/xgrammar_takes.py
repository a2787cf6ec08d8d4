"""Run by an engine's Python: of each line [structural tag, texts], which texts xgrammar takes, or
why it refuses the tag."""

from __future__ import annotations

import json
import sys

import xgrammar

END = 256
_tokens = [bytes([byte]) for byte in range(END)] + [b""]
_info = xgrammar.TokenizerInfo(
    _tokens, xgrammar.VocabType.RAW, vocab_size=len(_tokens), stop_token_ids=[END]
)
_compiler = xgrammar.GrammarCompiler(_info, max_threads=1, cache_enabled=False)


def takes(compiled: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(compiled)
    return all(matcher.accept_token(token) for token in [*text.encode(), END])


for line in sys.stdin:
    tag, texts = json.loads(line)
    try:
        compiled = _compiler.compile_structural_tag(json.dumps(tag))
        print(json.dumps([takes(compiled, text) for text in texts]), flush=True)
    except RuntimeError as error:
        print(json.dumps(str(error)), flush=True)
