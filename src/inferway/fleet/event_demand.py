"""Whether something needs to know what engines hold: only then their KV events are followed.

Where prompts are not looked at (`scoring: false`), no request is routed, recorded or explained by
what engines hold. What is left are scores, which hardly anybody asks such a gateway for: its
tokenizers are loaded only then, too (`prompts.on_demand`). Who needs the events all the time, says
so in the settings.
"""

from __future__ import annotations

from inferway.config import ServeSettings

NOT_FOLLOWED = (
    "scoring is off, and nobody has asked for scores yet; they are followed from the first request"
    " for scores on, or from the start with follow_events: always, publish, state_dir or heal"
)


def needs_events(settings: ServeSettings) -> bool:
    """Return whether events are followed before anybody asks for scores."""
    return (
        settings.scoring
        or settings.follow_events == "always"
        or settings.publish is not None
        or settings.state_dir is not None
        or settings.heal > 0
    )
