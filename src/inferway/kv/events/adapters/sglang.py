"""SGLang's form: vLLM's, but for two fields. vLLM's own is read as well, so that this adapter
serves wherever it is not known which of them an engine is.

With EAGLE drafting a token is a pair of it and the next one. One version (#37271) has a map with
"cache_salt" where the adapter's name stands.
"""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import Raw

from inferway.kv.events.adapters import vllm
from inferway.kv.events.event import Event, EventAdapter, EventError
from inferway_structured.decoding import UNREADABLE

_FIELDS = ("type", *vllm.StoredFields.__struct_fields__)


def _in_vllm_form(raw: Raw, path: int) -> Event | EventError | None:
    """A BlockStored in SGLang's form; None: `raw` is none."""
    try:
        event = msgspec.msgpack.decode(raw)
        fields = dict(zip(_FIELDS, event, strict=False)) if isinstance(event, list) else event
        if not isinstance(fields, dict):
            return None
        tokens, metadata = fields.get("token_ids"), fields.get("lora_name")
        if isinstance(tokens, list) and all(isinstance(token, list) for token in tokens):
            fields["token_ids"] = [token for token, _ in tokens]
        if isinstance(metadata, dict):
            fields["lora_name"] = None
            fields["cache_salt"] = fields.get("cache_salt") or metadata.get("cache_salt")
        return vllm.typed(msgspec.convert(fields, vllm.StoredMap), path)
    except (ValueError, *UNREADABLE):
        return None


# Reads the batch in a payload, which may be of SGLang or vLLM.
open_batch: EventAdapter = partial(vllm.open_batch, other_form=_in_vllm_form)
