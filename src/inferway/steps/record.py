"""What is remembered of one request until its answer has ended: for the access log and the metrics.

The request's journey writes it; whoever logs or counts the answer reads it once the journey is
closed. It holds names, numbers and reasons, and nothing of a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway.model import Target
    from inferway.openai_api.usage import Usage


@dataclass(slots=True)
class Record:
    """One request. Times are seconds of the director's clock."""

    opened_at: float
    model: str = ""  # that the client asked for, as it wrote it: of any length
    target_model: str = ""  # that it was sent on as; empty until that is known
    known_model: str = ""  # the one of them that engines or rules name; empty: neither
    reason: str = ""  # why the engine was chosen (model.Reason); empty until that is decided
    target: Target | None = None  # that was tried last
    attempts: int = 0
    begun_at: float = 0.0  # when the first piece of the answer came; 0.0: none has come
    waited: float = 0.0  # seconds, for its turn (flow)
    decided_in: float = 0.0  # seconds, until it was known where it goes, without that wait
    is_streamed: bool = False  # it is to be answered in pieces
    prompt_tokens: int = 0  # as we have counted them; 0: unknown
    is_timed: bool = False  # something is generated, and `steps.token_times` counts it
    # Of a streamed answer, written by `steps.token_times`:
    first_at: float = 0.0  # when its first tokens came; 0.0: none have come
    last_at: float = 0.0
    events: int = 0  # that carry tokens: one each, unless the engine speculates
    two_events: int = 0  # bytes: the events of a stream are about equally long
    usage: Usage | None = None  # what the engine has counted; None: it has not told
    outcome: str = ""  # scheduling.plugin.Ending; empty: the journey is not closed
