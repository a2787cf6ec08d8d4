"""Extra keys, which make a block beside its tokens: the adapter, the tenant's salt, pictures.

The same value comes out of a request and out of the engine's event, so that the keys of both
sides meet. vLLM publishes per block, untagged and in this order (0.32, kv_cache_utils.py
`to_event_extra_keys`): the LoRA name, `[multimodal id, offset in block]` pairs, the cache salt
(block 0 only), digests of prompt embeddings. So a bare string says nothing of its kind: the
first one that equals the event's `lora_name` is the adapter and counts once, as the adapter;
every other one is a plain key, and a request's salt is a plain key too.

An adapter is a name and a path: vLLM hashes both (0.32, `_gen_lora_extra_hash_keys`), so that a
name that is given to another adapter reuses nothing of the one before. Events have the name only;
the path is what the engine's /v1/models says. It stands in block 0, which all others follow on: a
block belongs to the adapter of the block before it, whatever the engine has loaded since.

Older engines publish no extra keys. Their adapter is still known from the event; their salts
are not, and salted prompts then never match (and unsalted ones match salted blocks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferway.model import MediaSpan

# (kind, value, offset): kinds are lora, lora_id, lora_path, key, mm, other
ExtraItem = tuple[str, str, int]
ExtraItems = tuple[ExtraItem, ...]

_EMPTY: Mapping[int, ExtraItems] = {}


@dataclass(frozen=True, slots=True)
class BlockExtras:
    """Items of a run of blocks. Block i has `every` and then `at[i]`; i counts from the first
    block of the run that is keyed, not from the prompt's."""

    every: ExtraItems = ()
    at: Mapping[int, ExtraItems] = field(default_factory=lambda: _EMPTY)

    def behind(self, num_blocks: int) -> BlockExtras:
        """Return the items of the blocks behind the first so many."""
        if not self.at:
            return self
        at = {i - num_blocks: items for i, items in self.at.items() if i >= num_blocks}
        return BlockExtras(self.every, at)

    def with_media(
        self, media: Sequence[MediaSpan], block_size: int, lookahead: int
    ) -> BlockExtras:
        """Return the same with the media of a prompt, each in all blocks that its tokens touch
        (vLLM 0.32, kv_cache_utils.py `_gen_mm_extra_hash_keys`). `lookahead`: the tokens behind a
        block that its hash covers as well (0.33, `generate_lookahead_block_hash_extra_keys`)."""
        of_media: dict[int, ExtraItems] = {}
        for each in media:
            first = max(each.offset - lookahead, 0) // block_size
            last = (each.offset + each.length - 1) // block_size
            for i in range(first, last + 1 if each.length else first):
                item = ("mm", each.identifier, each.offset - i * block_size)
                of_media[i] = (*of_media.get(i, ()), item)
        return self.joined(BlockExtras((), of_media))

    def joined(self, media: BlockExtras) -> BlockExtras:
        """Return the same with the items of media, which stand behind an adapter's path and before
        a salt."""
        at = dict(media.at)
        for i, items in self.at.items():
            paths = tuple([item for item in items if item[0] == "lora_path"])
            at[i] = paths + at.get(i, ()) + items[len(paths) :]
        return BlockExtras(self.every, at)


def request_extras(
    lora: str | None = None, cache_salt: str | None = None, lora_path: str | None = None
) -> BlockExtras | None:
    """Return the extras of a request's whole prompt; None if it has nothing but tokens."""
    if not lora and not cache_salt:
        return None
    every = (_lora(lora),) if lora else ()
    first = _path(lora, lora_path) + ((_key(cache_salt),) if cache_salt else ())
    return BlockExtras(every, {0: first} if first else _EMPTY)


def event_extras(
    lora_name: str | None,
    extra_keys: Sequence[object] | None,
    lora_id: int | None = None,
    lora_path: str | None = None,
) -> BlockExtras | None:
    """Return the extras of the blocks of one event; `extra_keys` has one entry per block, or is
    None. `lora_path` is to be given if the first of them begins a prompt.

    An adapter known by its number only (vLLM before `lora_name`) is kept apart from the base model,
    though no request will name it."""
    every: ExtraItems = ()
    if lora_name:
        every = (_lora(lora_name),)
    elif lora_id is not None:
        every = (("lora_id", str(lora_id), 0),)
    at: dict[int, ExtraItems] = {}
    if lora_name and lora_path:
        at[0] = _path(lora_name, lora_path)
    for i, entry in enumerate(extra_keys or ()):
        items = _items(entry, lora_name)
        if items:
            at[i] = at.get(i, ()) + items
    return BlockExtras(every, at) if every or at else None


def encode(items: ExtraItems) -> bytes:
    """Return one block's items as bytes, in netstring form: different items give different
    bytes."""
    out = bytearray()
    for kind, value, offset in items:
        raw = value.encode("utf-8", "surrogatepass")
        out += b"%s %d %d:%s," % (kind.encode(), offset, len(raw), raw)
    return bytes(out)


def _items(entry: object, lora_name: str | None) -> ExtraItems:
    if not isinstance(entry, list | tuple):
        return ()
    rest = list(entry)
    if lora_name and lora_name in rest:
        rest.remove(lora_name)
    return tuple(_item(value) for value in rest)


def _item(value: object) -> ExtraItem:
    match value:
        case str():
            return _key(value)
        case bytes():
            return _key(value.hex())
        case [str(identifier), int(offset)]:
            return ("mm", identifier, offset)
        case _:
            return ("other", repr(value), 0)


def _lora(name: str) -> ExtraItem:
    return ("lora", name, 0)


def _path(lora: str | None, path: str | None) -> ExtraItems:
    return (("lora_path", path, 0),) if lora and path else ()


def _key(value: str) -> ExtraItem:
    return ("key", value, 0)
