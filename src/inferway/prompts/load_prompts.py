"""A model that an engine serves -> how its requests become token ids."""

from __future__ import annotations

import logging
import os

from inferway.errors import InferwayError, RenderError, crash_report, panic_as_error
from inferway.model import Reason
from inferway.prompts.chat.request_templates import RequestTemplates
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import ModelSource, NoPrompts, PromptSource

log = logging.getLogger("inferway")


async def load_prompts(
    renderer: Renderer, request_templates: RequestTemplates | None, source: ModelSource
) -> PromptSource:
    """Load the model's tokenizer and template. Returns NoPrompts with the reason if they cannot be
    had; the model's requests are then routed by load only."""
    name, root = source.model, source.root
    request = GetOrCreateTokenizerKeyRequest(
        root,
        token=os.environ.get("HF_TOKEN") or None,
        follows_links=source.flags.tokenizer is not None,
    )
    try:
        key = await renderer.get_or_create_tokenizer_key_async(request)
        prompts = ModelPrompts(
            renderer,
            key,
            flags=source.flags,
            request_templates=request_templates,
        )
    except BaseException as raised:  # whatever it is: it is this model's, and others are served
        e = panic_as_error(raised)
        if not isinstance(e, InferwayError):
            log.error("the prompts of model %r could not be set up: %s", name, crash_report(e))
        reason = Reason(e.reason) if isinstance(e, RenderError) else Reason.NO_TOKENIZER
        if reason is Reason.BAD_TEMPLATE:
            return NoPrompts(reason, f"model {name!r}: {e}")
        cure = f"give --tokenizer {name}=PATH"
        return NoPrompts(reason, f"model {name!r}: no tokenizer from {root!r}: {e}; {cure}")
    log.info(
        "model %s has its tokenizer from %s, and the encoder %s (%s)",
        name,
        root,
        *prompts.encoder,
    )
    return prompts
