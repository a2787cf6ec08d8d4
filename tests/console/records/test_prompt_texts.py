"""The texts of prompts that admins have asked for are bounded, and compared with the nearest."""

from __future__ import annotations

from tests.console.records.prompts import Traffic, system, user

from inferway_console.records.prompt_texts import PromptTexts
from inferway_console.records.record import RequestRecord

RULES = " ".join(f"Rule {i} says {i * i}." for i in range(60))


def _record(request_id: str, chosen_blocks: int = 0, delivered_tokens: int = -1) -> RequestRecord:
    return RequestRecord(
        id=request_id, at=0.0, chosen_blocks=chosen_blocks, delivered_tokens=delivered_tokens
    )


def test_the_first_block_that_was_not_delivered_is_shown() -> None:
    texts = PromptTexts()
    routed = Traffic(texts).chat([system(RULES), user("Why?")])

    told = texts.told(_record(routed.request.request_id, chosen_blocks=9, delivered_tokens=32))

    assert told is not None
    assert (told["block"], told["token"]) == (2, 32)
    assert (told["before"] + told["behind"]).startswith("<|im_start|>system\nRule 0 says 0.")
    assert "nearest" not in told


def test_it_is_compared_with_the_nearest_prompt_before_it_of_the_same_salt() -> None:
    texts = PromptTexts()
    traffic = Traffic(texts)
    near = traffic.chat([system(f"{RULES} It is 07:16."), user("Why?")])
    traffic.chat([system(f"{RULES} It is 08:48."), user("Why?")], cache_salt="other")
    traffic.chat([system("Else"), user("Why?")])
    routed = traffic.chat([system(f"{RULES} It is 08:48."), user("Why?")])
    traffic.chat([system(f"{RULES} It is 08:48."), user("Why?")])

    told = texts.told(_record(routed.request.request_id))

    assert told is not None
    assert told["nearest"]["id"] == near.request.request_id
    assert told["nearest"]["kind"] == "time"


def test_the_oldest_are_dropped_over_the_bound() -> None:
    texts = PromptTexts(max_bytes=20_000)
    traffic = Traffic(texts)
    first = traffic.chat([system(RULES), user("0")])
    for number in range(20):
        last = traffic.chat([system(RULES), user(f"{number}")])
        assert texts.num_bytes <= 20_000

    assert texts.told(_record(first.request.request_id)) is None
    assert texts.told(_record(last.request.request_id)) is not None
    assert "Rule" not in repr(texts)
