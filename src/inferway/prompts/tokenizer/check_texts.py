"""Texts on which a fast encoder must agree with the engine's before it is used for a model.

They are few, because every load encodes them all; a text is here because encoders were seen to
differ on one like it, or because they well might.
"""

from __future__ import annotations

import tokenizers

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
    """`CHECK_TEXTS`, and some with the tokenizer's own added tokens."""
    texts = list(CHECK_TEXTS)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    # The first and the last: models put their oldest and their newest tokens there.
    for token in dict.fromkeys([*added[:12], *added[-12:]]):
        texts.append(f"a{token}b")
        texts.append(f"\n {token}  {token}\n x {token}{token[:-1]}")
    return texts
