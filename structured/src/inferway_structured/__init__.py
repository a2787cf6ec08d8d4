"""Structured output: what shape an answer must have, whether that can be kept, and keeping it.

spec       a request, in any form               -> what is asked: Spec          pure
check      Spec                                  -> valid and within limits, or where not; pure
backends   Spec + tokenizer                      -> a grammar that masks tokens
compile    which backend, once per spec, bounded -> Compiled, or a reason
vllm       all of it inside vLLM: a plugin of one entry point

vLLM's processes import this package whether it is switched on or not: nothing here imports the
gateway's rooms or libraries at its top, but `errors`.
"""
