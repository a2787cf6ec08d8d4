"""text -> token ids, with the fastest encoder that is exact for the model; and back.

HF `tokenizers` is the truth: it is what the engine uses. `fastokens` is ten to a hundred times
faster and gives the same ids where it supports a tokenizer at all; so it is used where it agrees
with the truth on `check_texts` when the tokenizer is loaded. HF's is then packed away (3-7 MB
instead of 60-130), and comes back for who asks for offsets, text or a byte that the other refuses.
Of HF's methods only `encode_batch_fast` is used for ids: `encode` keeps other threads from running.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Literal, Protocol

import fastokens
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from inferway.errors import (
    InvalidRequestError,
    PanicError,
    RenderError,
    crash_report,
    is_panic,
    panic_as_error,
)
from inferway.model import Offsets, Reason, TokenIds
from inferway.openai_api.token_ids import token_ids
from inferway.prompts.files.model_processes import OutsideEncoder
from inferway.prompts.tokenizer.engine_tokenizer import TokenizerFiles, build_engine_tokenizer
from inferway.prompts.tokenizer.token_cache import PrefixTokenCache, find_cuts
from inferway.prompts.tokenizer.tokenizer_bounds import unbounded_regex

# Few, because every load encodes them all; a text is here because encoders were seen to differ on
# one like it, or because they well might.
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


def check_texts(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Return `CHECK_TEXTS`, and some texts with the tokenizer's own added tokens."""
    texts = list(CHECK_TEXTS)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    # The first and the last: models put their oldest and their newest tokens there.
    for token in dict.fromkeys([*added[:12], *added[-12:]]):
        texts.append(f"a{token}b")
        texts.append(f"\n {token}  {token}\n x {token}{token[:-1]}")
    return texts


# Text that, in UTF-8, has every byte that can occur.
_POINTS = [*range(0xC0), *range(0xC0, 0x800, 0x40), *range(0x800, 0xD800, 0x800), 0xE000, 0xF000]
EVERY_BYTE = "".join(map(chr, [*_POINTS, *range(0x10000, 0x110000, 0x10000)]))


class HfEncoder:
    """The engine's own encoder. `get` may be called from any thread; what is packed away is
    unpacked once, and kept."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer: tokenizers.Tokenizer | None = tokenizer
        self._packed = b""
        # Not part of the JSON that a tokenizer is packed as.
        self._splits_special = tokenizer.encode_special_tokens
        self._lock = Lock()

    @property
    def is_packed(self) -> bool:
        return self._tokenizer is None

    def pack(self, as_json: str) -> None:
        """`as_json`: the tokenizer's own, which must be exact (a Unigram's scores are not)."""
        self._packed = zlib.compress(as_json.encode(), level=1)
        self._tokenizer = None

    def drop(self) -> None:
        """Free the tokenizer for good, where all texts are encoded by another process."""
        self._tokenizer = None

    def get(self) -> tokenizers.Tokenizer:
        tokenizer = self._tokenizer
        if tokenizer is not None:
            return tokenizer
        with self._lock:
            if self._tokenizer is None:
                as_json = zlib.decompress(self._packed).decode()
                tokenizer = tokenizers.Tokenizer.from_str(as_json)
                tokenizer.encode_special_tokens = self._splits_special
                self._tokenizer, self._packed = tokenizer, b""
            return self._tokenizer


def encode_all(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[TokenIds]:
    """Return the ids of each text, without special tokens around. Other threads run meanwhile."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [token_ids(encoding.ids) for encoding in encodings]


log = logging.getLogger("inferway")

EncoderName = Literal["fastokens", "tokenizers"]

# Above these many characters a request leaves the event loop. Measured on two shared cores:
# fastokens takes 0.4-1.2 ms for 64,000 new characters, HF 1.5 ms for 4,000.
MAX_CHARS_ON_LOOP = {"fastokens": 64_000, "tokenizers": 4_000}

# For what is remembered of texts, per model, once it is there: the starts of 1,000 chats of 9,000
# tokens, or of 70 of 128,000.
CACHE_BYTES = 64 << 20


class Tokenizer:
    """The tokenizer of one model; any thread may use it. `encoder` and `why` say which library
    encodes. `num_panics` counts the texts on which the engine's own encoder has panicked; any
    thread writes it."""

    def __init__(
        self, files: TokenizerFiles, outside: Callable[[], OutsideEncoder] | None = None
    ) -> None:
        """`outside` starts what encodes if a regex may take long for a text; None: it is done here
        whatever it takes. Raises RenderError."""
        self.num_panics = 0
        self._path = files.path
        built = build_engine_tokenizer(files)
        self.special_tokens = built.special_tokens
        self.max_chars_per_token = max(map(len, built.tokenizer.get_vocab(True)), default=1)
        self._prefix, self._suffix = _added_specials(built.tokenizer)
        self._around_pair = _around_pair(built.tokenizer)
        self._not_followed = built.not_followed
        cuts = find_cuts(built.tokenizer)
        self._reference = HfEncoder(built.tokenizer)
        regex = unbounded_regex(built.tokenizer)
        self._outside = None if outside is None or regex is None else outside()
        del built  # the last but the reference's own, which may be packed away
        if self._outside is None:
            self._fast, self.why = _agreeing_fastokens(self._reference)
        else:
            self._fast, self.why = None, self._goes_outside(str(regex))
        self.encoder: EncoderName = "tokenizers" if self._fast is None else "fastokens"
        self._starts = PrefixTokenCache(self._encode_all, cuts, CACHE_BYTES)

    def encode(
        self, text: str, *, add_special_tokens: bool, keep_last: int | None = None
    ) -> TokenIds:
        """Return the ids of `text`. `keep_last`: drop tokens at the start until so many are left,
        special tokens counted but not dropped."""
        self._check_followed(text)
        try:
            body = self._starts.encode(text)
        except BaseException as e:
            raise self._error_of(e) from None
        prefix, suffix = (self._prefix, self._suffix) if add_special_tokens else (_NO_IDS, _NO_IDS)
        if keep_last is not None:
            body = body[max(0, len(body) + len(prefix) + len(suffix) - keep_last) :]
        if not len(prefix) and not len(suffix):
            return body
        return np.concatenate([prefix, body, suffix])

    def encode_pair(self, first: str, second: str) -> TokenIds:
        """Return the ids of two texts with the special tokens that the tokenizer has for a pair.
        Raises as `encode` does."""
        if self._around_pair is None:
            raise RenderError(
                "the tokenizer does more with a pair of texts than add special tokens",
                reason=Reason.BAD_TOKENIZER,
            )
        before, between, behind = self._around_pair
        texts = (self.encode(text, add_special_tokens=False) for text in (first, second))
        return np.concatenate([before, next(texts), between, next(texts), behind])

    def num_new_chars(self, text: str) -> int:
        """Return how many characters of `text` a call of `encode` would encode, without the start
        that is remembered."""
        return self._starts.num_new_chars(text)

    def is_quick(self, num_chars: int) -> bool:
        """Return whether so many characters are encoded in a time that other requests can wait."""
        return num_chars <= MAX_CHARS_ON_LOOP[self.encoder]

    @property
    def is_outside(self) -> bool:
        """True if texts are encoded in another process, for which the caller waits."""
        return self._outside is not None

    @property
    def num_specials_before(self) -> int:
        """The number of special tokens that are put in front of a text."""
        return len(self._prefix)

    def encode_settled(self, text: str, place: int, *, add_special_tokens: bool) -> TokenIds:
        """Return the ids of `text` up to about `place`, where it is parted in any case. If the text
        ends there, they are the same whatever follows. Raises as `encode` does."""
        self._check_followed(text)
        try:
            body = self._starts.encode_settled(text, place)
        except BaseException as e:
            raise self._error_of(e) from None
        return np.concatenate([self._prefix, body]) if add_special_tokens else body

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool
    ) -> tuple[TokenIds, Offsets]:
        """Return the ids and their offsets in the text; slower, and always by HF's encoder."""
        self._check_followed(text)
        try:
            if self._outside is not None:
                return self._outside.encode_with_offsets(
                    text, add_special_tokens=add_special_tokens
                )
            [encoding] = self._reference.get().encode_batch(
                [text], add_special_tokens=add_special_tokens
            )
        except BaseException as e:
            raise self._error_of(e) from None
        offsets = np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2)
        return np.array(encoding.ids, dtype=np.uint32), offsets

    def decode(self, ids: TokenIds | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        try:
            if self._outside is not None:
                return self._outside.decode(ids, skip_special_tokens=skip_special_tokens)
            return self._reference.get().decode(
                list(map(int, ids)), skip_special_tokens=skip_special_tokens
            )
        except BaseException as e:
            raise self._error_of(e) from None

    def _check_followed(self, text: str) -> None:
        if self._not_followed is not None and self._not_followed in text:
            raise RenderError(
                f"the engine rearranges a text with {self._not_followed!r}; not followed here",
                reason=Reason.NO_TOKENIZER,
            )

    def _goes_outside(self, regex: str) -> str:
        """Why; said once."""
        self._reference.drop()
        why = f"its regex {regex[:200]!r} is neither a known model's nor a simple one"
        log.warning(
            "%s: %s, so some texts may take long: all are encoded in a helper process, which is"
            " slower and gives the same tokens; those that take too long go by load (reason"
            " helper-busy). Fix: have the regex listed in"
            " inferway/prompts/tokenizer/known_regexes.txt",
            self._path,
            why,
        )
        return f"in a helper process: {why}"

    def _encode_all(self, texts: Sequence[str]) -> list[TokenIds]:
        if self._outside is not None:
            return [self._outside.encode(text) for text in texts]
        fast = self._fast
        if fast is not None:
            try:
                return [_encode_fast(fast, text) for text in texts]
            except UnicodeEncodeError:
                raise
            # Some vocabularies lack a byte (SmolLM2: 0x16, 0xf1 and others that hardly occur). HF
            # drops it, fastokens refuses the text.
            except ValueError:
                pass
            except BaseException as e:
                if not is_panic(e):
                    raise
                self._give_up_fastokens(e)
        return encode_all(self._reference.get(), texts)

    def _give_up_fastokens(self, panic: BaseException) -> None:
        """For good: what state it has left behind, nobody knows, and one wrong id would make all
        ids after it worthless. What it cannot do, the truth can."""
        self._fast, self.encoder, self.why = None, "tokenizers", "fastokens has panicked on a text"
        log.error(
            "%s: fastokens has panicked on a text; from now on `tokenizers` encodes, which is "
            "slower\n%s",
            self._path,
            crash_report(panic),
        )

    def _error_of(self, raised: BaseException) -> Exception:
        """What to raise for it. A panic is of one text: others may do. Said once."""
        if isinstance(raised, UnicodeEncodeError | TypeError):  # fastokens' word, and HF's
            return InvalidRequestError(
                "the prompt's text has a lone surrogate, which no encoder accepts"
            )
        e = panic_as_error(raised)
        if not isinstance(e, PanicError):
            return e
        self.num_panics += 1
        if self.num_panics == 1:
            log.error(
                "%s: the library `tokenizers` has panicked on a text; such requests go by load "
                "only where no engine renders (reason bad-tokenizer)\n%s",
                self._path,
                crash_report(e),
            )
        return RenderError(
            f"{self._path}: the library `tokenizers` has panicked on the text",
            reason=Reason.BAD_TOKENIZER,
        )


def _added_specials(tokenizer: tokenizers.Tokenizer) -> tuple[TokenIds, TokenIds]:
    """What the post-processor puts before and behind a text."""
    [encoded] = tokenizer.encode_batch_fast(["a"], add_special_tokens=False)
    [with_specials] = tokenizer.encode_batch_fast(["a"], add_special_tokens=True)
    plain, full = encoded.ids, with_specials.ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            end = start + len(plain)
            return np.array(full[:start], np.uint32), np.array(full[end:], np.uint32)
    raise RenderError(
        "the tokenizer's post-processor does more than add special tokens around a text",
        reason=Reason.BAD_TOKENIZER,
    )


def _around_pair(tokenizer: tokenizers.Tokenizer) -> tuple[TokenIds, TokenIds, TokenIds] | None:
    """What the post-processor puts before, between and behind two texts; None if it does more."""
    first, second = (list(ids) for ids in encode_all(tokenizer, ["a", "b"]))
    [pair] = tokenizer.encode_batch_fast([("a", "b")], add_special_tokens=True)
    ids, texts = pair.ids, pair.sequence_ids
    if 0 not in texts or 1 not in texts:
        return None
    at, then = texts.index(0), texts.index(1)
    before, between = ids[:at], ids[at + len(first) : then]
    behind = ids[then + len(second) :]
    if ids != [*before, *first, *between, *second, *behind]:
        return None
    return token_ids(before), token_ids(between), token_ids(behind)


def _agreeing_fastokens(reference: HfEncoder) -> tuple[_FastEncoder | None, str]:
    """fastokens where it agrees with `reference`, which is then packed away; and why, or why
    not."""
    tokenizer = reference.get()
    refusal = _refusal(tokenizer)
    if refusal is not None:
        return None, refusal
    texts = check_texts(tokenizer)
    expected = encode_all(tokenizer, texts)
    as_json = tokenizer.to_str()
    # Out before the other comes in: the two together would leave twice the memory behind. But what
    # is needed beside the other is not unpacked at once, which takes 0.3 s.
    stays = _lacks_a_byte(tokenizer, as_json)
    if not stays:
        reference.pack(as_json)
    del tokenizer
    fast, why = _checked_fastokens(as_json, texts, expected)
    if fast is None or not _takes_every_byte(fast):
        reference.get()
    elif stays:
        reference.pack(as_json)
    return fast, why


def _lacks_a_byte(tokenizer: tokenizers.Tokenizer, as_json: str) -> bool:
    """Whether its vocabulary of bytes is not whole, so that fastokens refuses some texts."""
    alphabet = pre_tokenizers.ByteLevel.alphabet() if '"ByteLevel"' in as_json else ()
    return any(tokenizer.token_to_id(each) is None for each in alphabet)


def _refusal(tokenizer: tokenizers.Tokenizer) -> str | None:
    """Why fastokens cannot take such a tokenizer, whatever its vocabulary."""
    if not isinstance(tokenizer.model, models.BPE):
        return f"fastokens refuses it: no {type(tokenizer.model).__name__} models"
    if tokenizer.encode_special_tokens:
        return "fastokens finds special tokens in a text, which for this model are text"
    small = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(tokenizer, part) is not None:
            setattr(small, part, getattr(tokenizer, part))
    try:
        fastokens.Tokenizer.from_json_str(small.to_str())
    except BaseException as e:
        return f"fastokens refuses it: {panic_as_error(e)}"
    return None


def _checked_fastokens(
    as_json: str, texts: Sequence[str], expected: Sequence[TokenIds]
) -> tuple[_FastEncoder | None, str]:
    try:
        fast: _FastEncoder = fastokens.Tokenizer.from_json_str(as_json)
    except BaseException as e:
        return None, f"fastokens refuses it: {panic_as_error(e)}"
    for number, (text, ids) in enumerate(zip(texts, expected, strict=True)):
        try:
            same = np.array_equal(_encode_fast(fast, text), ids)
        except ValueError:  # a byte that the vocabulary lacks; the text goes to `tokenizers`
            continue
        except BaseException as e:
            return None, f"fastokens fails on check text {number}: {panic_as_error(e)}"
        if not same:
            return None, f"fastokens differs on check text {number}"
    return fast, f"agrees with tokenizers on {len(texts)} texts"


def _takes_every_byte(fast: _FastEncoder) -> bool:
    try:
        _encode_fast(fast, EVERY_BYTE)
    except ValueError:
        return False
    return True


class _FastEncoder(Protocol):
    """What we use of `fastokens.Tokenizer`."""

    def encode_batch_flat(self, inputs: list[str]) -> tuple[bytes, bytes]:
        """Little-endian uint32 ids of all inputs, and where each input's begin."""


_NO_IDS: TokenIds = np.empty(0, dtype=np.uint32)


def _encode_fast(encoder: _FastEncoder, text: str) -> TokenIds:
    """One text at a time: for more of them it would start threads of its own."""
    return np.frombuffer(encoder.encode_batch_flat([text])[0], dtype=np.uint32)
