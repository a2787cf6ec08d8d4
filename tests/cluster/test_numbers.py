"""The metrics of several processes are those of one gateway."""

from __future__ import annotations

from collections.abc import Mapping

from inferway.cluster.bus.messages import FamilyTold
from inferway.cluster.numbers import added_up, cache_worth, told
from inferway.metrics import Family, Histogram, counter, gauge, histogram


def of(*families: Family) -> list[FamilyTold]:
    return told(families)


def values(family: Family) -> Mapping[tuple[str, ...], float]:
    return {
        (sample.name, *map("=".join, sample.labels.items())): sample.value
        for sample in family.samples
    }


def test_counters_are_added_up_by_their_labels() -> None:
    own = counter("answers", "Answers.", ["status"], {("200",): 1})
    one = counter("answers", "Answers.", ["status"], {("200",): 2, ("404",): 3})
    other = counter("answers", "Answers.", ["status"], {("404",): 4})

    (found,) = added_up([own], [of(one), of(other)])

    assert values(found) == {
        ("inferway_answers_total", "status=200"): 3,
        ("inferway_answers_total", "status=404"): 7,
    }
    assert (found.type, found.documentation) == ("counter", "Answers.")


def test_histograms_are_added_up() -> None:
    def seconds(*taken: float) -> Family:
        made = Histogram((1.0, 2.0))
        for each in taken:
            made.observe(each)
        return histogram("seconds", "Seconds.", values=[((), made)])

    (found,) = added_up([seconds()], [of(seconds(0.5, 1.5)), of(seconds(0.7))])

    assert values(found) == {
        ("seconds_bucket", "le=1.0"): 2,
        ("seconds_bucket", "le=2.0"): 3,
        ("seconds_bucket", "le=+Inf"): 3,
        ("seconds_count",): 3,
        ("seconds_sum",): 0.5 + 1.5 + 0.7,
    }


def test_what_is_so_is_as_the_hub_sees_it() -> None:
    own = gauge("engine_up", "Up.", ["engine"], {("a",): 1, ("b",): 0})
    late = gauge("engine_up", "Up.", ["engine"], {("a",): 1, ("b",): 1})

    (found,) = added_up([own], [of(late), of(late)])

    assert values(found) == {
        ("inferway_engine_up", "engine=a"): 1,
        ("inferway_engine_up", "engine=b"): 0,
    }


def test_what_each_process_has_for_itself_is_added_up() -> None:
    (found,) = added_up(
        [gauge("http_connections", "Open.", value=1)],
        [of(gauge("http_connections", "Open.", value=2))] * 2,
    )

    assert values(found) == {("inferway_http_connections",): 5}


def test_what_workers_alone_have_is_there_too() -> None:
    costs = gauge("expected_cost_seconds", "Cost.", ["of"], {("fixed",): 0.5})

    (found,) = added_up([], [of(costs), of(costs)])

    assert values(found) == {("inferway_expected_cost_seconds", "of=fixed"): 0.5}


def test_what_caches_are_worth_is_added_up_and_can_be_read() -> None:
    def worth(tokens: float) -> Family:
        return gauge("engine_cache_worth_tokens", "Worth.", ["engine"], {("a",): tokens})

    workers = [of(worth(2), counter("answers", "Answers.", value=1)), of(worth(3))]

    (found, *_) = added_up([worth(0)], workers)

    assert values(found) == {("inferway_engine_cache_worth_tokens", "engine=a"): 5}
    assert [cache_worth(each) for each in workers] == [{"a": 2}, {"a": 3}]
