"""A model's tokenizer files -> the tokenizer that its engine builds from them.

Rule 1: what counts is what transformers 5 makes of the files (tokenization_utils_base.py,
`_from_pretrained`; tokenization_utils_tokenizers.py, `__init__`), not what they say: the model's
tokenizer class may set the pipeline anew, and tokens are added from up to four files.
Rule 2: tokens are added in transformers' order and through the same calls of `tokenizers`: one
that the vocabulary lacks gets the next free id.
Rule 3: `add_bos_token` and `add_eos_token` of tokenizer_config.json change nothing: transformers
drops them where there is a tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken, Regex, pre_tokenizers, processors

from inferway.errors import PanicError, RenderError, panic_as_error
from inferway.model import Reason
from inferway.prompts.tokenizer.tokenizer_bounds import check_expansion
from inferway.prompts.tokenizer.tokenizer_classes import (
    AS_IT_IS,
    NO_CLASS,
    TOKENIZER_CLASSES,
    TokenizerClass,
    build_as_class,
    tokenizer_class,
)

JsonObject = dict[str, Any]
Token = str | AddedToken

# In transformers' order.
STANDARD_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The contents of a model's files; what is not there is empty."""

    tokenizer_json: str = field(repr=False)
    tokenizer_config: JsonObject = field(default_factory=dict, repr=False)
    special_tokens_map: JsonObject = field(default_factory=dict, repr=False)
    added_tokens: Mapping[str, int] = field(default_factory=dict, repr=False)
    model_config: JsonObject = field(default_factory=dict, repr=False)  # config.json
    path: str = "tokenizer.json"  # where the first comes from, for messages


@dataclass(frozen=True, slots=True)
class EngineTokenizer:
    tokenizer: tokenizers.Tokenizer
    special_tokens: dict[str, str]  # by name, `bos_token` and the like: variables of a template
    not_followed: str | None = None  # a text that has this is encoded in another way


def build_engine_tokenizer(files: TokenizerFiles) -> EngineTokenizer:
    """Raises RenderError if tokenizer.json cannot be used, or the model's class is one that we
    do not reproduce."""
    name = tokenizer_class(files.tokenizer_config, files.model_config)
    made_as = NO_CLASS if name == AS_IT_IS else TOKENIZER_CLASSES[name]
    try:
        tokenizer, declared = _with_tokens(files, made_as)
        _fix_mistral_regex(tokenizer, files)
    # The Rust side raises bare Exception for a file it cannot read.
    except BaseException as raised:
        e = panic_as_error(raised)
        words = e.words if isinstance(e, PanicError) else str(e)
        why = f"{files.path}: it is no tokenizer that can be used: {words}"
        raise RenderError(why, reason=Reason.BAD_TOKENIZER) from e
    check_expansion(tokenizer, files.path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # Not part of a tokenizer.json: no encoder made from one can know of it.
    tokenizer.encode_special_tokens = bool(files.tokenizer_config.get("split_special_tokens"))
    special_tokens = {name: str(token) for name, token in declared.named.items()}
    return EngineTokenizer(tokenizer, special_tokens, made_as.not_followed)


def _with_tokens(
    files: TokenizerFiles, made_as: TokenizerClass
) -> tuple[tokenizers.Tokenizer, _Declared]:
    if made_as is NO_CLASS:
        tokenizer = tokenizers.Tokenizer.from_str(files.tokenizer_json)
        declared = _declared(files, made_as, tokenizer.get_added_tokens_decoder())
    else:
        file = msgspec.json.decode(files.tokenizer_json, type=JsonObject)
        of_file = {entry.pop("id"): AddedToken(**entry) for entry in file.get("added_tokens", [])}
        declared = _declared(files, made_as, of_file)
        unk_token = str(declared.named.get("unk_token"))
        tokenizer = build_as_class(made_as, file, files.tokenizer_config, unk_token)
    _add_tokens(tokenizer, declared)
    _finish(tokenizer, made_as, declared)
    return tokenizer, declared


@dataclass(frozen=True, slots=True)
class _Declared:
    named: dict[str, Token]  # `bos_token` and the like, and those a model names itself
    extra: list[Token]
    by_id: dict[int, AddedToken]


def _declared(
    files: TokenizerFiles, made_as: TokenizerClass, of_file: Mapping[int, AddedToken]
) -> _Declared:
    settings = _settings(files)
    given = {
        name: token
        for name, value in settings.items()
        if name.endswith("_token") and ((token := _token(value)) is not None or value is None)
    }
    extra = settings.get("extra_special_tokens", {})
    if isinstance(extra, dict):  # of named ones; then others may be under the older name
        for name in extra.keys() & {name for name, token in given.items() if token is None}:
            del given[name]  # its place in the order is not that of the null
        given |= {name: _token(value) for name, value in extra.items()}
        others = settings.get("additional_special_tokens") or ()
        extra = [*others, *made_as.extra_special_tokens]
    by_id = _listed(files, _contents(settings), of_file)
    listed = {token.content: token for token in by_id.values()}
    for name in STANDARD_TOKENS:
        if name in given:
            given[name] = listed.get(str(given[name]), given[name])
    tokens = {**dict.fromkeys(STANDARD_TOKENS), **made_as.special_tokens, **given}
    return _Declared(
        named={name: token for name, token in tokens.items() if token is not None},
        extra=[token for value in extra or () if (token := _token(value)) is not None],
        by_id=by_id,
    )


def _settings(files: TokenizerFiles) -> JsonObject:
    """tokenizer_config.json, and special_tokens_map.json where it counts."""
    settings = dict(files.tokenizer_config)
    for name in ("add_bos_token", "add_eos_token"):
        settings.pop(name, None)
    if "additional_special_tokens" in settings and not settings.get("extra_special_tokens"):
        settings["extra_special_tokens"] = settings.pop("additional_special_tokens")
    if "added_tokens_decoder" not in settings:
        # Not over a token that only this model has a name for.
        kept = {name for name, value in settings.items() if isinstance(value, str)}
        kept -= set(STANDARD_TOKENS)
        for name, value in files.special_tokens_map.items():
            if name in kept:
                continue
            if name == "extra_special_tokens" and isinstance(value, list):
                before = settings.get(name) or []
                settings[name] = [*before, *(token for token in value if token not in before)]
            elif isinstance(value, dict) and name != "extra_special_tokens":
                settings[name] = {**value, "special": True}
            else:
                settings[name] = value
    return settings


def _contents(settings: JsonObject) -> set[str]:
    """What counts as special in added_tokens.json: neither tokens of the class, nor those that
    tokenizer_config.json writes as objects."""
    values = [settings.get(name) for name in STANDARD_TOKENS]
    extra = settings.get("extra_special_tokens") or ()
    tokens = [*values, *(extra if isinstance(extra, list) else ())]
    return {
        str(_token(value))
        for value in tokens
        if isinstance(value, str) or (isinstance(value, dict) and "__type" not in value)
    }


def _listed(
    files: TokenizerFiles, special: set[str], of_file: Mapping[int, AddedToken]
) -> dict[int, AddedToken]:
    """Those of added_tokens.json and of tokenizer.json itself count only where
    tokenizer_config.json lists none."""
    listed = files.tokenizer_config.get("added_tokens_decoder")
    if listed is not None:
        return {int(id): AddedToken(**fields) for id, fields in listed.items()}
    by_id = {
        id: AddedToken(content, normalized=content not in special, special=content in special)
        for content, id in files.added_tokens.items()
    }
    return {**by_id, **of_file}


def _token(value: object) -> Token | None:
    """A token as JSON has it: text, or an object with `content` and flags."""
    if isinstance(value, dict):
        return AddedToken(**{name: flag for name, flag in value.items() if name != "__type"})
    return value if isinstance(value, str) else None


def _add_tokens(tokenizer: tokenizers.Tokenizer, declared: _Declared) -> None:
    """Those that are there already too: their flags may have changed in between."""
    tokens: list[Token] = [token for _, token in sorted(declared.by_id.items())]
    contents = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    contents |= set(map(str, tokens))
    for token in (*declared.named.values(), *declared.extra):
        if str(token) not in contents and token not in tokens:
            tokens.append(token)
    names = set(map(str, declared.named.values()))
    tokenizer.add_tokens([_special(token, names) for token in tokens])


def _special(token: Token, names: set[str]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    token.special = token.special or token.content in names
    return token


def _finish(tokenizer: tokenizers.Tokenizer, made_as: TokenizerClass, declared: _Declared) -> None:
    adds = made_as.adds
    if adds is None and tokenizer.post_processor is None:
        adds = ()
    if adds is not None:
        _set_post_processor(tokenizer, [declared.named.get(name, name) for name in adds])
    special = [*declared.named.values(), *declared.extra]
    if made_as.adds_special_plain:
        contents = dict.fromkeys(map(str, special))
        tokenizer.add_tokens([AddedToken(content, special=True) for content in contents])
    if made_as.adds_special:
        tokenizer.add_special_tokens([_special(token, set()) for token in special])


def _set_post_processor(tokenizer: tokenizers.Tokenizer, parts: Sequence[Token]) -> None:
    """`parts`: the tokens around a text, which is "$A"; around each of a pair they are the same."""
    contents = [str(part) for part in parts] or ["$A"]
    ids = {content: tokenizer.token_to_id(content) for content in contents if content != "$A"}
    known = [content for content in contents if ids.get(content, 0) is not None]
    single = [f"{content}:0" for content in known]
    second = [f"{content.replace('$A', '$B')}:1" for content in known]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, *second],
        special_tokens=[(content, id) for content, id in ids.items() if id is not None],
    )


# transformers' repair of the pre-tokenizer of Mistral's checkpoints of 2024 and 2025.
_MISTRAL_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MISTRAL_TYPES = {None, "mistral", "mistral3", "voxtral", "ministral", "pixtral"}


def _fix_mistral_regex(tokenizer: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Done if the model's files ask for it, which few do (`_patch_mistral_regex`)."""
    if files.tokenizer_config.get("fix_mistral_regex") is not True or not files.model_config:
        return
    version = str(files.model_config.get("transformers_version") or "")
    major = version.split(".")[0]
    if version and (int(major) >= 5 or files.model_config.get("model_type") not in _MISTRAL_TYPES):
        return
    before = tokenizer.pre_tokenizer
    if tokenizer.get_vocab_size() <= 100_000 or before is None:
        return
    words = pre_tokenizers.Split(Regex(_MISTRAL_WORDS), behavior="isolated")
    if isinstance(before, pre_tokenizers.Sequence):
        before[0] = words
        return
    if isinstance(before, pre_tokenizers.Metaspace):
        before = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, before])
