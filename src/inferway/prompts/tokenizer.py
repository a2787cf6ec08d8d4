"""text -> token ids, with the fastest encoder that is exact for the model; and back.

HF `tokenizers` is the truth: it is what the engine uses. `fastokens` is ten to a hundred times
faster and gives the same ids where it supports a tokenizer at all; so it is used where it agrees
with the truth on `CHECK_TEXTS` when the tokenizer is loaded. Of HF's methods only
`encode_batch_fast` is used for ids: `encode` keeps other threads from running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import fastokens
import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken

from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason, TokenIds
from inferway.prompts.model_files import JsonObject, ModelFiles, special_tokens

EncoderName = Literal["fastokens", "tokenizers"]

# (tokens, 2): [start, end) of each token in characters of the text.
Offsets = NDArray[np.uint32]

# Pieces between added tokens that fastokens remembers, per model.
SEGMENT_CACHE_BYTES = 32 << 20

CHECK_TEXTS = (
    "",
    " ",
    "\n",
    " \n\t \r\n  x",
    "a",
    "Hello, world!",
    "   leading, trailing   ",
    "It's what they'll've done; WE'RE 'S 'ſ",
    "x = 12345.678e-9 + 0xFF  # ½ ² ٣ 〇 一二三",
    "def f(a,\tb):\n\n\n        return a[b]  \n",
    "            \t\t\t   ",
    "https://example.org/a?b=c&d=%20#e <tag attr='v'/> {\"k\": [null, -1.5]}",
    "ÀÉÎÕÜ ñ ß ﬁ Ǆ e\u0301 a\u0308\u0323 Å \u212b",
    "Быстрая коричневая лиса. Ωμέγα, ελληνικά.",
    "你好，世界！今天天气不错。 日本語のテキスト、カタカナ 한국어 문장입니다.",
    "العَرَبِيَّة نص، עברית ניקוד, فارسی\u200cنوشته",
    "नमस्ते दुनिया ไทยไม่มีช่องว่าง தமிழ் ქართული ភាសាខ្មែរ",
    "👋🏽 👩‍👩‍👧‍👦 🇫🇷 ❤️ ☃ 🤷🏻‍♀️😀😀😀",
    "\u200b\u200d\ufeff\u00a0\u2003\u2028\u3000\u00ad",
    "\x00\x01\x1b[0m\x7f\x85",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎𠜱 \U0010ffff \ufffd",
    "a" * 300,
    "ab " * 100,
    "\n" * 40 + "-" * 80 + "\n" * 3,
    "supercalifragilisticexpialidocious" * 3,
    "aAbB1cC2 camelCaseIdentifier SCREAMING_SNAKE kebab-case-word",
)


class Tokenizer:
    """One model's tokenizer; any thread may use it. `encoder` and `why` say what encodes."""

    def __init__(self, files: ModelFiles) -> None:
        self.special_tokens = special_tokens(files.config)
        self._reference = _reference(files, self.special_tokens)
        self.max_chars_per_token = max(map(len, self._reference.get_vocab(True)), default=1)
        self._prefix, self._suffix = self._added_specials()
        self._fast, self.why = self._checked_fastokens()
        self.encoder: EncoderName = "tokenizers" if self._fast is None else "fastokens"

    def encode(
        self, text: str, *, add_special_tokens: bool, keep_last: int | None = None
    ) -> TokenIds:
        """Ids of `text`. `keep_last`: drop tokens at the start until so many are left, special
        tokens counted but not dropped."""
        try:
            body = self._encode_plain(text)
        except (UnicodeEncodeError, TypeError) as e:  # fastokens says the one, HF the other
            raise _not_unicode() from e
        prefix, suffix = (self._prefix, self._suffix) if add_special_tokens else (_NO_IDS, _NO_IDS)
        if keep_last is not None:
            body = body[max(0, len(body) + len(prefix) + len(suffix) - keep_last) :]
        if not len(prefix) and not len(suffix):
            return body
        return np.concatenate([prefix, body, suffix])

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[TokenIds, Offsets]:
        """Ids, and where each stands in the text; slower, and always HF's encoder."""
        try:
            [encoding] = self._reference.encode_batch([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as e:
            raise _not_unicode() from e
        offsets = np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2)
        return np.array(encoding.ids, dtype=np.uint32), offsets

    def decode(self, ids: TokenIds | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._reference.decode(list(map(int, ids)), skip_special_tokens=skip_special_tokens)

    def _encode_plain(self, text: str) -> TokenIds:
        if self._fast is None:
            return _encode_reference(self._reference, text)
        try:
            return _encode_fast(self._fast, text)
        except UnicodeEncodeError:
            raise
        # Some vocabularies lack a byte (SmolLM2: 0x16, 0xf1 and others that hardly occur). HF
        # drops it, fastokens refuses the text.
        except ValueError:
            return _encode_reference(self._reference, text)

    def _added_specials(self) -> tuple[TokenIds, TokenIds]:
        """What the post-processor puts before and behind a text."""
        plain = self._reference.encode("a", add_special_tokens=False).ids
        full = self._reference.encode("a", add_special_tokens=True).ids
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                end = start + len(plain)
                return np.array(full[:start], np.uint32), np.array(full[end:], np.uint32)
        raise RenderError(
            "the tokenizer's post-processor does more than add special tokens around a text",
            reason=Reason.BAD_TOKENIZER,
        )

    def _checked_fastokens(self) -> tuple[_FastEncoder | None, str]:
        try:
            fast: _FastEncoder = fastokens.Tokenizer.from_json_str(self._reference.to_str())
        except ValueError as e:
            return None, f"fastokens refuses it: {e}"
        num_texts = 0
        for text in self._check_texts():
            if not np.array_equal(
                _encode_fast(fast, text), _encode_reference(self._reference, text)
            ):
                return None, f"fastokens differs on check text {num_texts}"
            num_texts += 1
        fast.enable_segment_cache(SEGMENT_CACHE_BYTES)
        return fast, f"agrees with tokenizers on {num_texts} texts"

    def _check_texts(self) -> Iterator[str]:
        yield from CHECK_TEXTS
        added = [token.content for token in self._reference.get_added_tokens_decoder().values()]
        # The first and the last: models put their oldest and their newest tokens there.
        for token in [*added[:12], *added[-12:]]:
            yield f"a{token}b"
            yield f"\n {token}  {token}\n x {token}{token[:-1]}"


class _FastEncoder(Protocol):
    """What we use of `fastokens.Tokenizer`."""

    def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
        """Little-endian uint32 ids of all inputs, and where each input's begin."""

    def enable_segment_cache(self, max_bytes: int) -> None: ...


_NO_IDS: TokenIds = np.empty(0, dtype=np.uint32)


def _encode_fast(encoder: _FastEncoder, text: str) -> TokenIds:
    return np.frombuffer(encoder.encode_batch_flat([text])[0], dtype=np.uint32)


def _encode_reference(encoder: tokenizers.Tokenizer, text: str) -> TokenIds:
    encoding = encoder.encode_batch_fast([text], add_special_tokens=False)[0]
    return np.array(encoding.ids, dtype=np.uint32)


def _not_unicode() -> InvalidRequestError:
    return InvalidRequestError("the prompt's text has a lone surrogate, which no encoder accepts")


def _reference(files: ModelFiles, named: dict[str, str]) -> tokenizers.Tokenizer:
    """The HF tokenizer, with what tokenizer_config.json changes on it. Its `add_bos_token` and
    `add_eos_token` change nothing: transformers 5 drops them where there is a tokenizer.json."""
    try:
        tokenizer = tokenizers.Tokenizer.from_str(files.tokenizer_json)
    # The Rust side raises bare Exception for a file it cannot read.
    except Exception as e:
        raise RenderError(f"tokenizer.json cannot be read: {e}", reason=Reason.BAD_TOKENIZER) from e
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, files.config, named)
    return tokenizer


def _add_tokens(tokenizer: tokenizers.Tokenizer, config: JsonObject, named: dict[str, str]) -> None:
    present = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    tokens = [AddedToken(**entry) for _, entry in sorted(listed.items(), key=lambda e: int(e[0]))]
    tokens = [token for token in tokens if repr(token) not in present]
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    known |= {token.content for token in tokens}
    tokens += [AddedToken(text, special=True) for text in named.values() if text not in known]
    if tokens:
        tokenizer.add_tokens(tokens)
