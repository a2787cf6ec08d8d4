"""A decided request -> one try on one engine: what it takes there, and gives back once.

a slot         among the requests under way there, with the tokens that must be computed
a speculation  its prompts count as held there, until the answer's first token
a report       maybe: it asks the engine for all that it reuses, which we know in part only
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from inferway.kv.index.speculative import Speculation, SpeculativeOverlay
from inferway.model import Cut, Endpoint, HolderId, Target, block_size_of
from inferway.openai_api.edits import with_last_members, with_vllm_xarg
from inferway.openai_api.requests import REPORT_MODE
from inferway.routing.match import Matched, MatchedPrompts

TOKENS = b"tokens"  # the edit of a body that carries its prompt's ids
IDS = b"return_token_ids"  # of one whose answer another engine may go on with
TRANSFER = b"kv_transfer_params"  # of one that is a leg of two

# A scheduler of calls, which calls a function in a moment.
Later = Callable[[Callable[[], None]], object]


class EndpointBook(Protocol):
    """The part of the fleet to which journeys and their attempts report (fleet.Fleet)."""

    def cut(self, holder: HolderId) -> Cut | None:
        """Return how prompts are cut for the endpoint; None when the engine has not told."""

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        """A request is on its way there; so many of its tokens must be computed."""

    def release(self, endpoint: Endpoint) -> None:
        """A request that was booked there has ended."""

    def heal(self, endpoint: Endpoint) -> bool:
        """Return whether the engine is to be asked, by a request that goes there now and finds
        more than we know of, to report all that it reuses; `healed` when that has ended."""

    def healed(self, endpoint: Endpoint) -> None:
        """The request that asked for a report has ended."""

    def reports(self, endpoint: Endpoint) -> None:
        """A request is about to go there that asks by itself for a report of what it reuses."""

    def suspect(self, endpoint: Endpoint) -> None:
        """A request has just failed there."""


class Attempt:
    """Begins when it is made; `end` must be called."""

    __slots__ = (
        "_book",
        "_overlay",
        "_speculations",
        "asks_for_report",
        "body",
        "edits",
        "is_moved",
        "prompt_tokens",
        "reused_tokens",
        "target",
    )

    def __init__(
        self,
        target: Target,
        body: bytes,
        matched: MatchedPrompts,
        goes_on: bool,
        book: EndpointBook,
        overlay: SpeculativeOverlay,
        is_moved: bool = False,
    ) -> None:
        """`goes_on`: the engine's prompts are longer than `matched`, what we know of them.
        `is_moved`: it computes none of them, but gets their blocks from another engine."""
        self.target = target
        self.body = body  # that is sent; with what this attempt adds
        self.edits: tuple[bytes, ...] = ()  # what it has added
        self.asks_for_report = False
        self.is_moved = is_moved
        self._book = book
        self._overlay = overlay
        endpoint = target.endpoint
        holder = endpoint.holder
        items: Sequence[Matched] = ()
        num_tokens = num_reused = 0
        if matched and (cut := book.cut(holder)) is not None:
            items, size = matched.get(cut, ()), block_size_of(cut)
            num_tokens = sum([len(item.prompt.token_ids) for item in items])
            # vLLM computes a prompt's last token always, and so never reuses its block
            reusable = sum(
                [
                    (len(item.prompt.token_ids) - (not goes_on)) // size
                    for item in items
                    if item.is_read
                ]
            )
            num_reused = min(target.matched_blocks, reusable) * size
            if any(holder in item.found.reuse for item in items):  # it may end within a block
                tokens = sum([item.found.tokens(holder, size) for item in items if item.is_read])
                num_reused = max(num_reused, tokens)
            known = sum([item.found.blocks.get(holder, 0) for item in items])
            if known < reusable and book.heal(endpoint):
                self._ask_for_report()
        self.prompt_tokens = num_tokens
        self.reused_tokens = num_reused
        book.book(endpoint, 0 if is_moved else num_tokens - num_reused)
        self._speculations: list[Speculation] = []
        if items:
            self._speculations = [
                overlay.add(holder, item.prompt.block_keys, item.found.blocks.get(holder, 0))
                for item in items
            ]

    def _ask_for_report(self) -> None:
        edited = with_vllm_xarg(self.body, *REPORT_MODE)
        if edited is None:
            self._book.healed(self.target.endpoint)
        else:
            self.body, self.asks_for_report = edited, True
            self.edits = (b"vllm_xargs",)

    def carry_tokens(self, body: bytes | None) -> None:
        """Send `body`, which has the prompt's token ids; None: what would be sent has none."""
        if body is not None:
            self.body = body
            self.edits = (*self.edits, TOKENS)

    def ask_for_ids(self) -> bool:
        """Have the engine tell the ids of its tokens; return whether the body says so."""
        body = with_last_members(self.body, b'"return_token_ids":true')
        if body is None:
            return False
        self.body = body
        self.edits = (*self.edits, IDS)
        return True

    def carry_transfer(self, body: bytes, *, with_tokens: bool) -> None:
        """Send `body`, which says what the engine gets from another one, or has for it."""
        self.body = body
        self.edits = (*self.edits, TRANSFER, TOKENS) if with_tokens else (*self.edits, TRANSFER)

    def has_begun_to_answer(self, later: Later | None) -> None:
        """The engine has computed the prompt, and has told so in its events, or will have when
        `later` calls: until then the prompt counts as held."""
        speculations, self._speculations = self._speculations, []
        if speculations and later is not None:
            later(partial(self._overlay.remove_all, speculations))
        else:
            self._overlay.remove_all(speculations)

    def end(self) -> None:
        """Give back what the attempt took. It must be called once."""
        endpoint = self.target.endpoint
        if self._speculations:
            self._overlay.remove_all(self._speculations)
        self._book.release(endpoint)
        if self.asks_for_report:
            self._book.healed(endpoint)
