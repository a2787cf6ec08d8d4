"""What vLLM's own processors made of drawn chats with sounds (tests/engines/record_sounds.py),
beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.engines.drawn_sounds import Drawn, drawn_sounds
from tests.engines.record_media import checksum
from tests.engines.tiny_sound import FAMILIES
from tests.engines.tiny_vision import write_model

from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.loaded_model import LoadedModel
from inferway.prompts.media.chat_media import in_order
from inferway.prompts.media.items import MediaItem
from inferway.prompts.media.rule import Size, Sound


def faults(name: str, seed: int, rows: Sequence[Any], folder: Path) -> list[str]:
    """Return the chats of a family that are not what is recorded, with both. What vLLM refuses has
    no ids: a short sound may be refused only where it is alone."""
    model = LoadedModel(read_model_files(write_model(FAMILIES[name], folder)))
    found = []
    for drawn, row in zip(drawn_sounds(name, seed, len(rows)), rows, strict=True):
        ours = _made(model, drawn)
        if row is not None and ours != row:
            found.append(f"{drawn}: {ours}, vLLM: {row}")
    return found


def _made(model: LoadedModel, drawn: Drawn) -> list[Any] | None:
    """Return the places of sounds and of pictures, and the checksum of the ids; None if not all is
    known."""
    rules = {"audio": model.sound_rule, "image": model.media_rule}
    items = [MediaItem(0, 0, "audio", "name", Sound(*sound)) for sound in drawn.sounds]
    items += [MediaItem(0, 0, "image", "name", Size(*size)) for size in drawn.sizes]
    ids = model.tokenizer.encode(drawn.text, add_special_tokens=False)
    made = in_order(ids, items, {kind: rule for kind, rule in rules.items() if rule is not None})
    if made is None or len(made[0]) < len(items):
        return None
    taken, (ids, spans) = made
    places: dict[str, list[list[int]]] = {"audio": [], "image": []}
    for item, span in zip(taken, spans, strict=True):
        places[item.modality].append(list(span))
    return [places["audio"], places["image"], checksum(ids.tolist())]
