"""Structured output inside vLLM: a plugin of one entry point (group `vllm.general_plugins`).

switch     is it on
settings   `inferway` in --additional-config, and variables of the environment
fit        does this vLLM have the functions we patch, as we know them
install    the patches, and what happens where one does not fit
core       in the engine core: a spec -> a grammar for each request
adapter    our grammars as vLLM calls them
front      in the API server: check what is asked, off the event loop
asgi       a body read, an answer sent, without a framework
http       the request's body before vLLM sees it, its answer before the client does
endpoints  /v1/structured/{warm,stats,explain}
overlap    prefill while the grammar compiles
calls      what vLLM makes of tools, with all that was examined
metrics    what was counted, on vLLM's own page
forced_tokens  tokens that must come are drafts

All of vLLM's processes import this module, on or off: nothing is imported at its top.
"""


def register() -> None:
    """Register the plugin; vLLM calls this in every process. Whatever goes wrong in here, vLLM
    stays as it is; where the plugin is required, it raises SystemExit."""
    from inferway_structured.vllm import settings, switch

    try:
        switch.register()
    except Exception as e:
        import logging
        import os

        settings.end_if_required(f"it could not be set up ({type(e).__name__}: {e})")
        logging.getLogger("vllm.inferway").exception(
            "process %d uses vLLM's own structured output, because Inferway's plugin could not be "
            "set up",
            os.getpid(),
        )
