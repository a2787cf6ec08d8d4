"""What engines are asked, what a difference tells, and which flag is found behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from inferway.config import ModelSettings
from inferway.errors import RenderError
from inferway.model import Reason, TokenIds, Tokenized
from inferway.openai_api.requests import CHAT, COMPLETION, PromptBody
from inferway.prompts import GetOrCreateTokenizerKeyRequest, ModelPrompts, Renderer
from inferway.prompts.chat.conversation import NO_FLAGS
from inferway.prompts.fidelity import (
    PROBES,
    Difference,
    FlagFinding,
    NotRendered,
    Outcome,
    compare,
    find,
    live_copy,
    live_kind,
    live_words,
    our_outcome,
)

MakePrompts = Callable[..., ModelPrompts]

# Shows everything that a flag can change.
TALKATIVE = (
    "{{ bos_token }}{% if enable_thinking is defined and not enable_thinking %}[quiet]{% endif %}"
    "{% if effort_of is defined %}[{{ effort_of }}]{% endif %}"
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}({{ part.text }}){% endfor %}{% endif %}"
    "{{ m.reasoning_content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TERSE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def ids(*values: int) -> TokenIds:
    return np.array(values, dtype=np.uint32)


@pytest.fixture(scope="module")
def make_prompts(tmp_path_factory: pytest.TempPathFactory, renderer: Renderer) -> MakePrompts:
    """make_prompts(flags, **what the model's files say): a model under an engine's flags."""

    @cache
    def load(template: str, order: int) -> str:
        directory = tmp_path_factory.mktemp("model")
        write_byte_model(directory, json.loads(template), order)
        request = GetOrCreateTokenizerKeyRequest(str(directory), is_local=True)
        return renderer.get_or_create_tokenizer_key(request)

    def make(
        flags: ModelSettings | None = None, template: object = TALKATIVE, order: int = 1
    ) -> ModelPrompts:
        return ModelPrompts(renderer, load(json.dumps(template), order), flags=flags or NO_FLAGS)

    return make


def write_byte_model(directory: Path, template: object, order: int) -> None:
    """A model with a token for each byte, numbered up or down, and one special token."""
    letters = sorted(ByteLevel.alphabet())[::order]
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<bos>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def answers_of(prompts: ModelPrompts) -> dict[str, Outcome]:
    """What an engine that renders so says to each probe."""

    async def ask() -> dict[str, Outcome]:
        outcomes = {
            probe.name: await our_outcome(prompts, probe.path, probe.body("m")) for probe in PROBES
        }
        return {name: outcome for name, outcome in outcomes.items() if outcome is not None}

    return asyncio.run(ask())


def differences(ours: ModelPrompts, theirs: ModelPrompts) -> Mapping[str, Difference]:
    here, there = answers_of(ours), answers_of(theirs)
    found = {name: compare(here[name], there[name]) for name in here}
    return {name: difference for name, difference in found.items() if difference is not None}


def finding(ours: ModelPrompts, theirs: ModelPrompts) -> FlagFinding:
    return asyncio.run(find("m", ours, answers_of(theirs), differences(ours, theirs)))


class TestComparing:
    def test_the_same_ids_are_no_difference(self) -> None:
        assert compare([ids(1, 2), ids(3)], [ids(1, 2), ids(3)]) is None

    @pytest.mark.parametrize(
        ("ours", "theirs", "place"),
        [
            ([ids(1, 2, 3)], [ids(1, 9, 3)], (0, 1)),
            ([ids(1), ids(2)], [ids(1), ids(3)], (1, 0)),
            ([ids(1, 2)], [ids(1, 2, 3)], (0, 2)),
            ([ids(1, 2)], [ids(1)], (0, 1)),
            ([ids()], [ids(1)], (0, 0)),
        ],
    )
    def test_the_first_other_token_is_named(
        self, ours: Outcome, theirs: Outcome, place: tuple[int, int]
    ) -> None:
        difference = compare(ours, theirs)

        assert difference is not None
        assert (difference.prompt, difference.position) == place

    def test_that_both_refuse_is_agreement(self) -> None:
        assert compare(NotRendered("system role"), NotRendered("roles must alternate")) is None

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (NotRendered("no"), [ids(1)]),
            ([ids(1)], NotRendered("no")),
            ([ids(1)], [ids(1), ids(1)]),
        ],
    )
    def test_that_one_refuses_is_a_difference_without_a_place(
        self, ours: Outcome, theirs: Outcome
    ) -> None:
        difference = compare(ours, theirs)

        assert difference is not None
        assert difference.position is None


class Refusing:
    def __init__(self, reason: Reason) -> None:
        self.reason = reason

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        raise RenderError("not here", reason=self.reason)


class Knowing:
    """Knows prompts as far as `reason` says."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        return Tokenized([ids(1)], self.reason)


class TestOurOutcome:
    def test_a_template_that_refuses_is_an_outcome(self, make_prompts: MakePrompts) -> None:
        refusing = make_prompts(template="{{ raise_exception('no system role') }}")

        outcome = asyncio.run(our_outcome(refusing, CHAT, PROBES[0].body("m")))

        assert isinstance(outcome, NotRendered)
        assert "no system role" in outcome.why

    @pytest.mark.parametrize("reason", [Reason.OWN_RENDERER, Reason.NO_TEMPLATE])
    def test_what_is_not_ours_to_render_is_none(self, reason: Reason) -> None:
        assert asyncio.run(our_outcome(Refusing(reason), CHAT, PROBES[0].body("m"))) is None

    @pytest.mark.parametrize(
        ("reason", "is_whole"),
        [(Reason.KV_AWARE, True), (Reason.REMOTE, True), (Reason.REMOTE_PREFIX, False)],
    )
    def test_only_whole_prompts_can_be_compared(self, reason: Reason, is_whole: bool) -> None:
        outcome = asyncio.run(our_outcome(Knowing(reason), CHAT, PROBES[0].body("m")))

        assert (outcome is not None) is is_whole


class TestProbes:
    def test_each_asks_for_one_token_and_the_ids_apart_from_clients_blocks(self) -> None:
        for probe in PROBES:
            body = probe.body("m")

            assert body["max_tokens"] == 1
            assert body["return_token_ids"] is True
            assert body["cache_salt"]

    def test_they_are_few_short_and_told_apart_by_name(self, make_prompts: MakePrompts) -> None:
        answers = answers_of(make_prompts())

        lengths = [sum(map(len, o)) for o in answers.values() if not isinstance(o, NotRendered)]
        assert len({probe.name for probe in PROBES}) == len(PROBES) == len(lengths) <= 8
        assert sum(lengths) < 5000  # bytes

    def test_an_engine_like_us_agrees(self, make_prompts: MakePrompts) -> None:
        assert differences(make_prompts(), make_prompts()) == {}


FLAGS = {
    "content format": (
        ModelSettings(chat_template_content_format="string"),
        "--chat-template-content-format",
        'set models: {"m":{"chat_template_content_format":"string"}}',
    ),
    "default arguments": (
        ModelSettings(chat_template_kwargs={"enable_thinking": False}),
        "--default-chat-template-kwargs",
        'set models: {"m":{"chat_template_kwargs":{"enable_thinking":false}}}',
    ),
    "an effort": (
        ModelSettings(chat_template_kwargs={"effort_of": "low"}),
        "--default-chat-template-kwargs",
        'set models: {"m":{"chat_template_kwargs":{"effort_of":"low"}}}',
    ),
    "tools left out": (
        ModelSettings(exclude_tools_when_tool_choice_none=True),
        "--exclude-tools-when-tool-choice-none",
        'set models: {"m":{"exclude_tools_when_tool_choice_none":true}}',
    ),
    "another template": (
        ModelSettings(chat_template=TERSE),
        "--chat-template",
        "give what it was given: --chat-template m=FILE",
    ),
}


class TestLikelyFlag:
    @pytest.mark.parametrize(("flags", "flag", "cure"), FLAGS.values(), ids=FLAGS)
    def test_a_flag_of_the_engine_is_found_with_its_cure(
        self, make_prompts: MakePrompts, flags: ModelSettings, flag: str, cure: str
    ) -> None:
        found = finding(make_prompts(), make_prompts(flags))

        assert f"likely flag of the engine: {flag}; fix: {cure}" in found.words

    @pytest.mark.parametrize("flags", [flags for flags, _, _ in FLAGS.values()], ids=FLAGS)
    def test_the_cure_cures(self, make_prompts: MakePrompts, flags: ModelSettings) -> None:
        assert differences(make_prompts(flags), make_prompts(flags)) == {}

    def test_a_setting_of_ours_that_the_engine_does_not_have_is_to_be_removed(
        self, make_prompts: MakePrompts
    ) -> None:
        ours = make_prompts(ModelSettings(chat_template=TERSE))

        found = finding(ours, make_prompts())

        assert "the engine was started without --chat-template" in found.words
        assert "remove chat_template of models: m" in found.words

    def test_a_template_of_the_models_own_is_found_by_name(self, make_prompts: MakePrompts) -> None:
        templates = [
            {"name": "default", "template": TALKATIVE},
            {"name": "rag", "template": TERSE},
        ]
        theirs = make_prompts(ModelSettings(chat_template="rag"), templates)

        found = finding(make_prompts(template=templates), theirs)

        assert 'fix: set models: {"m":{"chat_template":"rag"}}' in found.words

    def test_another_tokenizer_shows_in_plain_texts(self, make_prompts: MakePrompts) -> None:
        found = finding(make_prompts(), make_prompts(order=-1))

        assert (
            "flag of the engine: --tokenizer; fix: give what it was given: --tokenizer m=DIR"
            in (found.words)
        )

    def test_special_tokens_around_texts_are_the_tokenizers_files(
        self, make_prompts: MakePrompts
    ) -> None:
        plain = answers_of(make_prompts())["texts"]
        assert not isinstance(plain, NotRendered)
        theirs = [np.concatenate([ids(256), text]) for text in plain]
        difference = compare(plain, theirs)
        assert difference is not None

        found = asyncio.run(find("m", make_prompts(), {"texts": theirs}, {"texts": difference}))

        assert "whose files add other special tokens around a text" in found.words

    @pytest.mark.parametrize(
        ("probe", "words"),
        [
            ("tools", "--chat-template, in what it makes of tools"),
            ("reasoning", "--chat-template, or a vLLM that shows reasoning otherwise"),
        ],
    )
    def test_what_differs_alone_narrows_the_guess(
        self, make_prompts: MakePrompts, probe: str, words: str
    ) -> None:
        ours = make_prompts()
        answers = {**answers_of(ours), probe: [ids(5, 6)]}
        difference = compare(answers_of(ours)[probe], answers[probe])
        assert difference is not None

        found = asyncio.run(find("m", ours, answers, {probe: difference}))

        assert words in found.words

    def test_a_template_that_shows_the_time_raises_a_question(
        self, make_prompts: MakePrompts
    ) -> None:
        ours = make_prompts(template="{{ strftime_now('%Y') }}" + TALKATIVE)
        theirs = make_prompts(template="1999" + TALKATIVE)

        assert "do clocks and time zones agree?" in finding(ours, theirs).words

    def test_the_first_other_token_is_shown_with_the_text_around_it(
        self, make_prompts: MakePrompts
    ) -> None:
        theirs = make_prompts(ModelSettings(chat_template_kwargs={"enable_thinking": False}))

        found = finding(make_prompts(), theirs)

        assert found.words.startswith("6 of 7 probes differ (chat, no system message, parts, ")
        assert "'chat' from token 1 on" in found.words
        assert found.evidence.startswith("'chat', token 1, after '<bos>' [256]: here '<")
        assert "there '[quiet]<" in found.evidence
        assert "quiet" not in found.words

    def test_a_refusal_is_shown_with_its_reason(self, make_prompts: MakePrompts) -> None:
        ours = make_prompts(template="{{ raise_exception('alternate!') }}")

        found = finding(ours, make_prompts())

        assert "refused here (" in found.evidence
        assert "alternate!" in found.evidence
        assert found.evidence.endswith("rendered there")

    def test_prompts_that_are_not_made_here_are_compared_without_texts(self) -> None:
        difference = compare([ids(1, 2)], [ids(1, 3)])
        assert difference is not None

        found = asyncio.run(find("m", None, {"chat": [ids(1, 3)]}, {"chat": difference}))

        assert found.evidence == "'chat', token 1, after [1]: here [2], there [3]"

    def test_the_same_difference_is_of_the_same_kind(self, make_prompts: MakePrompts) -> None:
        quiet = make_prompts(ModelSettings(chat_template_kwargs={"enable_thinking": False}))
        terse = make_prompts(ModelSettings(chat_template=TERSE))

        kinds = [finding(make_prompts(), theirs).kind for theirs in (quiet, quiet, terse)]

        assert kinds[0] == kinds[1] != kinds[2]


class TestLiveCopies:
    def test_only_what_shapes_the_prompt_is_asked_again(self) -> None:
        fields = {
            "model": "m",
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "chat_template_kwargs": {"enable_thinking": False},
            "cache_salt": "tenant",
            "unknown_to_us": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "n": 4,
            "max_completion_tokens": 900,
            "min_tokens": 10,
            "logprobs": True,
            "response_format": {"type": "json_object"},
            "request_id": "r1",
        }

        assert live_copy(fields) == {
            "model": "m",
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "chat_template_kwargs": {"enable_thinking": False},
            "cache_salt": "tenant",
            "unknown_to_us": 1,
            "max_tokens": 1,
            "stream": False,
            "return_token_ids": True,
        }

    @pytest.mark.parametrize(
        ("given", "sent"),
        [
            ("required", "auto"),
            ({"type": "function", "function": {"name": "f"}}, "auto"),
            ("none", "none"),
            ("auto", "auto"),
            (None, None),
        ],
    )
    def test_no_answer_is_enforced(self, given: object, sent: object) -> None:
        copy = live_copy({"tool_choice": given})

        assert copy is not None
        assert copy["tool_choice"] == sent

    @pytest.mark.parametrize(
        "fields",
        [
            {"kv_transfer_params": {"do_remote_decode": True}},
            {"prompt_embeds": "AAAA"},
            {"truncate_prompt_tokens": -1},
            {"chat_template": "{{ range(9)|random }}"},
            {"chat_template_kwargs": {"chat_template": "{{ strftime_now('%f') }}"}},
        ],
    )
    def test_what_a_copy_would_change_is_not_copied(self, fields: dict[str, Any]) -> None:
        assert live_copy({"model": "m", "prompt": "x", **fields}) is None

    def test_nothing_of_a_live_prompt_is_said_but_places_ids_and_fields(self) -> None:
        fields = {"messages": [{"role": "user", "content": "secret"}], "tools": ["secret"]}
        difference = compare([ids(1, 2, 3)], [ids(1, 7)])
        assert difference is not None

        words = live_words(CHAT, fields, difference)

        assert words == "a chat with tools: token 1 is 2 here and 7 there (3 and 2 tokens)"

    def test_a_prompt_that_ends_early_says_so(self) -> None:
        difference = compare([ids(1)], [ids(1, 7)])
        assert difference is not None

        words = live_words(COMPLETION, {"prompt": "secret"}, difference)

        assert words == "a text: token 1 is missing here and 7 there (1 and 2 tokens)"

    def test_requests_with_the_same_fields_are_of_one_kind(self) -> None:
        one, other = {"tools": [1], "messages": [1]}, {"tools": [2], "messages": [2]}

        assert live_kind(CHAT, one) == live_kind(CHAT, other)
        assert live_kind(CHAT, one) != live_kind(CHAT, {**one, "documents": [1]})
