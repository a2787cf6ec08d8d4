"""Tries to load what turns the engines' models' requests into tokens, as `serve` would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferway.doctor.facts import EngineReport, TokenizerReport
from inferway.errors import InferwayError, RenderError, TemplateError
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.chat.conversation import chat_input
from inferway.prompts.render_requests import Encoding, GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer, Rendering


def sources(engines: Sequence[EngineReport]) -> dict[str, str]:
    """Return each base model's directory or hub id; adapters use their base model's tokenizer."""
    told = [engine.told for engine in engines if engine.told is not None]
    cards = [card for facts in told for card in facts.models if card.parent is None]
    return {card.name: card.root or card.name for card in cards}


def try_tokenizers(wanted: Mapping[str, str], token: str | None) -> list[TokenizerReport]:
    """Takes a second for each that is here, three for each that cannot be had."""
    renderer = Renderer()
    try:
        return [_try(renderer, model, source, token) for model, source in wanted.items()]
    finally:
        renderer.close()


def _try(renderer: Renderer, model: str, source: str, token: str | None) -> TokenizerReport:
    request = GetOrCreateTokenizerKeyRequest(source, token=token)
    try:
        key = renderer.get_or_create_tokenizer_key(request)
        loaded = renderer.loaded(key)
    except RenderError as e:
        return TokenizerReport(model, source, error=str(e))
    if loaded.own_renderer is not None:
        return TokenizerReport(model, source, own_renderer=loaded.own_renderer)
    return TokenizerReport(model, source, inline_system=_inline_system(renderer, key))


def _inline_system(renderer: Renderer, key: str) -> str | None:
    """What the model's template does with a system message among the others (facts)."""
    first, turn, late = "the first rule", "a question", "a later rule"
    roles = (("system", first), ("user", turn), ("system", late), ("user", "another question"))
    chat = ChatRequest(messages=[{"role": role, "content": text} for role, text in roles])
    try:
        model = renderer.loaded(key)
        template = model.template()
        if template.refuses_inline_system:  # as engines try it
            return "refuses"
        seen = chat_input(chat, template, special_tokens=model.tokenizer.special_tokens)
        text = renderer.text_of(Rendering(model, template, seen, Encoding()))
    except TemplateError:
        return "refuses"
    except InferwayError:
        return None
    if late not in text:
        return "drops"
    return "front" if text.find(late) < text.find(turn) else "keeps"
