"""The tokenizer of one engine, as each library wants it: each made once, when first asked for."""

from __future__ import annotations

import json
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from inferway_structured.backends.blanks import Blanks, BlanksAndNames, BlanksInTags
from inferway_structured.errors import ConfigError

if TYPE_CHECKING:
    import llguidance


class Vocabulary:
    """The tokens of a model as bytes, from a tokenizer.json (`text`) or from what `_tokens_of`
    writes. `size` is the length of the engine's bitmask rows in tokens: the model's, which may be
    more than the tokenizer has."""

    def __init__(self, text: str, *, size: int, eos_token_ids: tuple[int, ...]) -> None:
        self.size = size
        self.eos_token_ids = eos_token_ids
        self._text = text
        self._given: llguidance.LLTokenizer | None = None
        self._making = Lock()

    @classmethod
    def of(cls, tokenizer: Any, size: int) -> Vocabulary:
        """Return the vocabulary of a fast Hugging Face tokenizer, or of one that brings its own
        LLTokenizer, as Mistral's does (`llg_tokenizer`). Raises ConfigError for any other."""
        eos = (int(tokenizer.eos_token_id),)
        given = getattr(tokenizer, "llg_tokenizer", None)
        if given is not None:
            vocabulary = cls(_tokens_of(given), size=given.vocab_size, eos_token_ids=eos)
            vocabulary._given = given
            return vocabulary
        return cls(_text(tokenizer), size=max(size, len(tokenizer)), eos_token_ids=eos)

    @property
    def written(self) -> tuple[str, int, tuple[int, ...]]:
        """The description from which another process makes the same vocabulary."""
        return self._text, self.size, self.eos_token_ids

    @property
    def tokenizes(self) -> bool:
        """True if it is known which tokens the model would write a text with. False: only what each
        token writes."""
        return self._given is not None or not self._text.startswith(_TOKENS)

    @property
    def num_words(self) -> int:
        """The number of int32 words in a row of the bitmask."""
        return (self.size + 31) // 32

    @property
    def ll_tokenizer(self) -> llguidance.LLTokenizer:
        """Takes about a second. Any thread."""
        with self._making:
            return self._ll_tokenizer

    @cached_property
    def _ll_tokenizer(self) -> llguidance.LLTokenizer:
        if self._given is not None:
            return self._given
        import llguidance

        source: Any = self._text
        if not self.tokenizes:
            source = llguidance.TokenizerWrapper(_Tokens(self._text, self.eos_token_ids[0]))
        return llguidance.LLTokenizer(source, n_vocab=self.size, eos_token=list(self.eos_token_ids))

    @cached_property
    def token_bytes(self) -> list[bytes | None]:
        """The bytes that each token writes; None for a token that writes nothing, because it is
        special or does not exist."""
        tokenizer = self.ll_tokenizer
        return [
            None if tokenizer.is_special_token(token) else tokenizer.decode_bytes([token]) or None
            for token in range(self.size)
        ]

    @cached_property
    def blanks(self) -> Blanks:
        return Blanks(self)

    @cached_property
    def blanks_and_names(self) -> BlanksAndNames:
        return BlanksAndNames(self)

    @cached_property
    def blanks_in_tags(self) -> BlanksInTags:
        return BlanksInTags(self)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens by what they are called: no text writes them."""
        tokenizer = self.ll_tokenizer
        return {
            tokenizer.decode_str([token]): token
            for token in range(self.size)
            if tokenizer.is_special_token(token)
        }

    @cached_property
    def tokenizer_info(self) -> Any:
        """The vocabulary as xgrammar's type. Only where it is installed: beside an engine."""
        import xgrammar

        return xgrammar.TokenizerInfo(
            [written or b"" for written in self.token_bytes],
            xgrammar.VocabType.RAW,
            vocab_size=self.size,
            stop_token_ids=list(self.eos_token_ids),
        )


_TOKENS = '{"tokens of a library": '  # no tokenizer.json begins so


def _tokens_of(tokenizer: llguidance.LLTokenizer) -> str:
    """Return what each token writes, in hex, and which are special: all that masks are made of."""
    ids = range(tokenizer.vocab_size)
    special = [token for token in ids if tokenizer.is_special_token(token)]
    words = [tokenizer.decode_bytes([token]).hex() for token in ids]
    return f"{_TOKENS}{json.dumps([words, special])}}}"


class _Tokens:
    """Such a tokenizer in another process, as llguidance asks one: by shape."""

    bos_token_id = None

    def __init__(self, text: str, eos_token_id: int) -> None:
        words, self.special_token_ids = json.loads(text[len(_TOKENS) : -1])
        self.tokens = [bytes.fromhex(word) for word in words]
        self.eos_token_id = eos_token_id

    def __call__(self, _: bytes | str) -> list[int]:
        """Never called (`Vocabulary.tokenizes`)."""
        return []


def _text(tokenizer: Any) -> str:
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise ConfigError(
            f"the tokenizer is a {type(tokenizer).__name__}: structured output needs a fast one"
        )
    text: str = fast.to_str()
    tree = json.loads(text)
    tree["padding"] = tree["truncation"] = None  # both would cut what is tokenized here
    return json.dumps(tree, ensure_ascii=False)
