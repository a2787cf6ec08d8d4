"""Metric families of rendering, and of the helper processes that work for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inferway.metrics import Family, Row, counter, table
from inferway.prompts.chat.helper_templates import RequestTemplates
from inferway.prompts.renderer import Renderer
from inferway_structured.sandbox.sandbox import SandboxStats

_HELPERS: tuple[Row[SandboxStats], ...] = (
    (
        counter,
        "helper_jobs",
        "Jobs that were given to the helper process, by kind of work.",
        lambda stats: stats.jobs,
    ),
    (
        counter,
        "helper_refused",
        "Jobs that were refused because too many waited for the helper process, by kind of work.",
        lambda stats: stats.refused,
    ),
    (
        counter,
        "helper_starts",
        "Times that a helper process was started, by kind of work.",
        lambda stats: stats.started,
    ),
)


def prompt_families(renderer: Renderer, templates: RequestTemplates | None) -> Iterator[Family]:
    """Yield the families. `templates`: None if requests may not bring templates of their own."""
    yield counter(
        "render_off_loop",
        "Prompts that were rendered or encoded in a thread because of their size,"
        " their template or their encoder.",
        value=renderer.num_off_loop,
    )
    stats = {
        "large-chats": renderer.large_chats.helper.stats,
        "model-files": renderer.trials.stats,
        "texts": renderer.outside_stats,
    }
    if templates is not None:
        stats["request-templates"] = templates.helper.stats
    yield from helper_families(stats)


def helper_families(stats: Mapping[str, SandboxStats]) -> Iterator[Family]:
    """Yield the families of helper processes, by the kind of their work."""
    yield from table(_HELPERS, ["work"], {(work,): each for work, each in stats.items()})
    yield counter(
        "helper_kills",
        "Jobs of the helper process that were killed with it, by kind of work and"
        " by the limit they passed.",
        ["work", "limit"],
        {(work, limit): n for work, each in stats.items() for limit, n in each.kills.items()},
    )
