"""The dialect of an engine's hashes: found from its first events, verified from then on.

An event has the tokens of its blocks and their hashes, so whoever hashes as the engine does comes
to the same. A hash covers the one before it in full, and the wire carries 64 bits of it: so only
chains from a prompt's start can be hashed, and what continues one that was. That two dialects
agree on 64 bits by chance happens once in 10**19 blocks: one that fits is the engine's.

Who joins late may never see a prompt's start: all chats begin alike, and the engine has that block
already. Then prompts help that were routed meanwhile: one that has the very tokens of a *loose*
event in it, at the place of a block, is likely the prompt that the event was of (`find`), and is
hashed up to there (`prove`).

    unknown        nothing that could be hashed has come yet
    found          a dialect fits, and has fitted all that was looked at since
    none           none of those we know fits what came
    contradicted   one did, and no longer does; it is not used any more

Extra keys (adapters, salts) are hashed with tags by vLLM 0.32 and without by older ones. Which it
is shows with the first block that has some. The tagged form of an adapter has its path, which an
event does not say: `lora_path` does, from the `root` of the adapter's card in /v1/models (vLLM
0.32 puts the same path there and into the hash). Blocks with pictures or prompt embeddings are
left out. Engines that do not publish extra keys (vLLM before 0.18) keep their salts to themselves:
a salted prompt contradicts whatever was found, which costs adoption and nothing else.

SGLang's hashes and vLLM's `builtin` ones are not among those we know.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from inferway.kv.blocks.dialects import (
    ALGORITHMS,
    DEFAULT_SEED,
    Dialect,
    HashExtra,
    LoraAdapter,
    hash_extras,
    wire_hash,
    without_salt,
)
from inferway.kv.events.event import BlockStored
from inferway.model import TokenIds

SEEDS = (DEFAULT_SEED, "0", "42")  # what PYTHONHASHSEED is set to in vLLM's and llm-d's guides

_CHECK_FIRST = 64  # chains looked at once a dialect is found
_THEN_ONE_IN = 256
_TRY_CHAINS = 8  # that may not be what they seem and fit nothing, until it is said so
_MAX_LOOSE = 64  # events
_STEP = 16  # blocks hashed at a time: 40 µs with pickle, 0.5 ms with our CBOR
_MAX_WAITING = 64  # events
_MAX_BLOCKS = 64  # looked at in one event
_MAX_DIGESTS = 4096  # of blocks that others may continue


class DialectState(StrEnum):
    UNKNOWN = "unknown"
    FOUND = "found"
    NONE = "none"
    CONTRADICTED = "contradicted"


class DialectFinder:
    """Finds the algorithm by which one engine hashes its blocks. `see` takes stored blocks at no
    cost; `step` does the hashing."""

    def __init__(
        self,
        seeds: Iterable[str] = SEEDS,
        *,
        lora_path: Callable[[str], str | None] = lambda _: None,
        hash_size: Callable[[], int | None] = lambda: None,
        on_moved: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`hash_size` says how many tokens a hash has where that is fewer than a block. `on_moved`
        is told of an adapter that is found to be from elsewhere (`is_moved`)."""
        self.state = DialectState.UNKNOWN
        self.num_checked = 0  # blocks that the found dialect hashes as the engine does
        self._seeds = tuple(dict.fromkeys(seeds))
        self._lora_path = lora_path
        self._hash_size = hash_size
        self._on_moved = on_moved
        self._fitting = [
            Dialect(algorithm, seed, tagged=tagged)
            for seed in self._seeds
            for algorithm in ALGORITHMS
            for tagged in (True, False)
        ]
        self._waiting: deque[BlockStored] = deque(maxlen=_MAX_WAITING)
        self._loose: OrderedDict[bytes, BlockStored] = OrderedDict()  # by their first block
        self._digests: OrderedDict[int, bytes] = OrderedDict()  # the same in all that fit
        self._num_seen = 0  # chains since it was found, or none was
        self._num_misfits = 0

    @property
    def name(self) -> str | None:
        """The name of the dialect found; None if none is known."""
        if self.state is not DialectState.FOUND:
            return None
        dialect = self._fitting[0]
        return f"{dialect.algorithm}, seed {dialect.seed!r}"

    @property
    def finding(self) -> str | None:
        """A sentence that says what is wrong, and the cure; None if nothing is."""
        if self.state is DialectState.NONE:
            return (
                "its block hashes are none that we know (tried: "
                f"{', '.join(ALGORITHMS)} with the seeds {', '.join(map(repr, self._seeds))}), so "
                "blocks whose parent's event was lost cannot be matched: set PYTHONHASHSEED=0 "
                "for the engine (its xxhash forms use a random seed without it), or use "
                "--prefix-caching-hash-algo sha256"
            )
        if self.state is DialectState.CONTRADICTED:
            return (
                "its block hashes are no longer those of the dialect found at first "
                f"({self._fitting[0].algorithm}), so blocks whose parent's event was lost are not "
                "matched: if requests have a cache_salt, use an engine that publishes extra keys "
                "(vLLM 0.18 or later); else report this with the engine's version"
            )
        return None

    def dialects(self, *, with_extras: bool) -> Sequence[Dialect]:
        """Return the dialects to hash prompts with, such as have extra keys or such as have none:
        the one that is known, two as long as no block with extra keys has shown how they are
        hashed, or none."""
        if self.state is not DialectState.FOUND:
            return ()
        return self._fitting if with_extras else self._fitting[:1]

    def dialect(self) -> Dialect | None:
        """Return the dialect that is known; it is looked for at once in what was seen. None if
        there is none."""
        if self.state is DialectState.UNKNOWN and self._waiting:
            self.step(_STEP)
        return self._fitting[0] if self.state is DialectState.FOUND else None

    def see(self, event: BlockStored) -> None:
        """Take note of stored blocks of full attention in GPU memory, with tokens: events of other
        tiers need not say what else is hashed."""
        parent = event.parent_hash
        if parent is not None and parent not in self._digests:
            if self.state is DialectState.UNKNOWN:
                self._keep_loose(event)
            return
        if self.state is DialectState.CONTRADICTED:
            return
        if self.state is not DialectState.UNKNOWN:
            self._num_seen += 1
            if self._num_seen > _CHECK_FIRST and self._num_seen % _THEN_ONE_IN:
                return
        self._waiting.append(event)

    def confirms(self, event: BlockStored) -> bool:
        """Return whether tokens and adapter alone make an event's hashes: False if that is not
        known: no dialect is, its parent cannot be hashed, or it has more blocks than are hashed at
        once."""
        is_small = len(event.block_hashes) <= _STEP
        if self.state is not DialectState.FOUND or not is_small or not self._is_reachable(event):
            return False
        extras = self._extras(event)
        if extras is None:
            return False
        for dialect in self._fitting:
            if digests := self._hashes(dialect, event, extras):
                self._remember(event.block_hashes, digests)
                return True
        return False

    def is_moved(self, event: BlockStored) -> bool:
        """Return whether an adapter's block that begins a prompt is hashed with another path than
        the one that is known; False if that cannot be told."""
        if self.state is not DialectState.FOUND or event.parent_hash is not None:
            return False
        if not event.lora_name or not event.block_hashes:
            return False
        extras = self._extras(event)
        if extras is None:
            return False
        hashes = [self._hash(each, None, event, 0, extras[0]) for each in self._fitting]
        if event.block_hashes[0] in map(wire_hash, hashes):
            return False
        self._on_moved(event.lora_name)
        return True

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def step(self, max_blocks: int) -> None:
        """Hash about so many blocks of what was seen."""
        while self._waiting and max_blocks > 0 and self.state is not DialectState.CONTRADICTED:
            event = self._waiting.popleft()
            max_blocks -= min(len(event.block_hashes), _MAX_BLOCKS)
            extras = self._extras(event)
            if extras is None or not self._is_reachable(event):
                continue
            if self.state is DialectState.FOUND:
                self._check(event, extras)
            else:
                max_blocks -= len(self._fitting)
                self._try(event, extras)

    @property
    def wants_prompts(self) -> bool:
        return bool(self._loose) and self.state is DialectState.UNKNOWN

    def find(
        self, token_ids: TokenIds, block_size: int, lora: str | None
    ) -> tuple[int, BlockStored] | None:
        """Return the block of a prompt that a loose event begins with, and the event."""
        raw, step = token_ids.tobytes(), 4 * block_size
        for i in range(len(token_ids) // block_size):
            event = self._loose.get(raw[i * step : (i + 1) * step])
            if event is not None and event.lora_name == lora:
                return i, event
        return None

    def prove(
        self,
        event: BlockStored,
        token_ids: TokenIds,
        lora: LoraAdapter | None = None,
        cache_salt: str | None = None,
    ) -> Iterator[None]:
        """Hash a prompt whose last block is the first of a loose event, in each dialect; yield
        after every few blocks."""
        fitting: list[Dialect] = []
        digest = b""
        for dialect in list(self._fitting):
            hashes: list[bytes] = []
            for block_hash in dialect.block_hashes(
                token_ids, event.block_size, lora=lora, cache_salt=cache_salt
            ):
                hashes.append(block_hash)
                if len(hashes) % _STEP == 0:
                    yield
            if hashes and wire_hash(hashes[-1]) == event.block_hashes[0]:
                fitting.append(dialect)
                digest = hashes[-1]
        if self.state is not DialectState.UNKNOWN:
            return
        for block, loose in list(self._loose.items()):
            if loose is event:
                del self._loose[block]
        self._conclude(fitting, is_certain=False)
        if fitting:
            self._remember(event.block_hashes[:1], [digest])

    # steps

    def _keep_loose(self, event: BlockStored) -> None:
        if event.block_hashes:
            block = array("I", event.token_ids[: event.block_size]).tobytes()
            self._loose[block] = event
            if len(self._loose) > _MAX_LOOSE:
                self._loose.popitem(last=False)

    def _is_reachable(self, event: BlockStored) -> bool:
        """Return whether its first block can be hashed."""
        return bool(event.block_hashes) and (
            event.parent_hash is None or event.parent_hash in self._digests
        )

    def _try(self, event: BlockStored, extras: Sequence[tuple[HashExtra, ...] | None]) -> None:
        fitting = [d for d in self._fitting if self._hashes(d, event, extras) is not None]
        self._conclude(fitting, is_certain=event.extra_keys is not None)
        if fitting:
            self._check(event, extras)

    def _conclude(self, fitting: list[Dialect], *, is_certain: bool) -> None:
        """Conclude from one chain that was hashed in all dialects. `is_certain`: all that is hashed
        is known; else a salt may not have been told, or the prompt be another one."""
        if fitting:
            self._fitting = fitting
            self.state, self._num_seen = DialectState.FOUND, 0
            self._loose.clear()
            return
        self._num_misfits += 1
        if self.state is DialectState.UNKNOWN and (is_certain or self._num_misfits >= _TRY_CHAINS):
            self.state, self._num_seen = DialectState.NONE, 0
            self._loose.clear()

    def _check(self, event: BlockStored, extras: Sequence[tuple[HashExtra, ...] | None]) -> None:
        fitting = [(d, hashes) for d in self._fitting if (hashes := self._hashes(d, event, extras))]
        if fitting:
            self._fitting = [dialect for dialect, _ in fitting]
            self._remember(event.block_hashes, fitting[0][1])
        elif event.lora_name is None:
            self.state = DialectState.CONTRADICTED
            self._waiting.clear()
            self._digests.clear()
        # else the adapter may have been loaded from another path: its prompts will meet nothing

    def _remember(self, hashes: Sequence[int], digests: Sequence[bytes]) -> None:
        self.num_checked += len(digests)
        for block_hash, digest in zip(hashes, digests, strict=False):
            self._digests[block_hash] = digest
            self._digests.move_to_end(block_hash)
        while len(self._digests) > _MAX_DIGESTS:
            self._digests.popitem(last=False)

    def _hashes(
        self,
        dialect: Dialect,
        event: BlockStored,
        extras: Sequence[tuple[HashExtra, ...] | None],
    ) -> list[bytes] | None:
        """Return the full hashes of the event's blocks; None if the engine's are others."""
        parent = None if event.parent_hash is None else self._digests[event.parent_hash]
        hashes: list[bytes] = []
        if len(event.token_ids) > len(event.block_hashes) * event.block_size:
            return self._sparse_hashes(dialect, parent, event)
        for i, block_hash in enumerate(event.block_hashes[:_MAX_BLOCKS]):
            parent = self._hash(dialect, parent, event, i, extras[i])
            if wire_hash(parent) != block_hash:
                return None
            hashes.append(parent)
        return hashes

    def _sparse_hashes(
        self, dialect: Dialect, parent: bytes | None, event: BlockStored
    ) -> list[bytes] | None:
        """Return the hashes of an event that skips blocks, without extra keys."""
        if any(event.extra_keys or ()) or event.lora_name or event.lookahead_token_ids:
            return None
        found: dict[int, bytes] = {}
        for i in range(min(len(event.token_ids) // event.block_size, _MAX_BLOCKS)):
            parent = self._hash(dialect, parent, event, i, None)
            found[wire_hash(parent)] = parent
        own = event.block_hashes
        return [found[each] for each in own] if found.keys() >= set(own) else None

    def _hash(
        self,
        dialect: Dialect,
        parent: bytes | None,
        event: BlockStored,
        i: int,
        extra: tuple[HashExtra, ...] | None,
    ) -> bytes:
        """Return the hash of one block; of several, the last is the one it is known by."""
        size = event.block_size
        ahead = event.lookahead_token_ids[i] if event.lookahead_token_ids else []
        tokens = [*event.token_ids[i * size : (i + 1) * size], *ahead]
        unit = self._hash_size() or size
        unit = size if size % unit else unit
        for start in range(0, size, unit):
            end = start + unit
            behind = tuple(tokens[end : end + len(ahead)])
            parent = dialect.block_hash(parent, tokens[start:end], extra, behind)
            extra = without_salt(extra)
        assert parent is not None
        return parent

    def _extras(self, event: BlockStored) -> Sequence[tuple[HashExtra, ...] | None] | None:
        """Return what is hashed beside the tokens of each block, with tags, as far as blocks are
        looked at; None: that is not known."""
        lora: LoraAdapter | None = None
        if event.lora_name is None and event.lora_id is not None:
            return None
        if event.lora_name is not None:
            path = self._lora_path(event.lora_name)
            if path is None:
                return None
            lora = LoraAdapter(event.lora_name, path)
        num_blocks = min(len(event.block_hashes), _MAX_BLOCKS)
        entries = (event.extra_keys or [None] * num_blocks)[:num_blocks]
        extras = []
        for i, entry in enumerate(entries):
            rest = list(entry) if isinstance(entry, list | tuple) else []
            if lora is not None and lora.name in rest:
                rest.remove(lora.name)
            if len(rest) > (i == 0 and event.parent_hash is None) or not _is_text(rest):
                return None
            extras.append(hash_extras(lora, rest[0] if rest else None))
        return extras


def _is_text(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)
