"""The class of transformers' tokenizers that an engine uses for a model, and what each class makes
of a tokenizer.json.

The class is that of `AutoTokenizer.from_pretrained` in transformers 5.19 as vLLM 0.32 calls it
(models/auto/tokenization_auto.py, vllm/tokenizers/registry.py), and so are the names:
tests/prompts/test_tokenizer_class_names.py compares them with transformers' own lists.

Most models' classes take the file as it is. These keep only vocabulary, merges and (mostly)
post-processor of it and set the rest themselves, which may change how text is encoded. Each
follows models/*/tokenization_*.py; tests/prompts/test_engine_tokenizer.py compares the results with
transformers' own, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from inferway.errors import RenderError
from inferway.model import Reason

JsonObject = dict[str, Any]

_SPACE = "▁"
_BPE: JsonObject = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_BYTE_LEVEL_BPE = _BPE | {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
_FALLBACK_BPE = _BPE | {"fuse_unk": True, "byte_fallback": True}


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """The settings that one of transformers' tokenizer classes applies, whatever the files say."""

    model: JsonObject  # all of the file's model, but for vocabulary and merges
    set_pipeline: Callable[[tokenizers.Tokenizer, JsonObject], None]  # by tokenizer_config.json
    special_tokens: Mapping[str, str]  # where the model names no others
    extra_special_tokens: tuple[str, ...] = ()  # the same
    unk_in_model: bool = False  # the model's own unk_token is the special token of that name
    keeps_charsmap: bool = False  # sentencepiece's normaliser is taken from the file
    # The text, "$A", between names of special tokens; None: what the file's post-processor adds.
    adds: tuple[str, ...] | None = None
    adds_special_plain: bool = False  # special tokens are added once more, without their flags
    adds_special: bool = False  # the same with their flags
    not_followed: str | None = None  # a text that has this is encoded in another way


def build_as_class(
    made_as: TokenizerClass, file: JsonObject, config: JsonObject, unk_token: str
) -> tokenizers.Tokenizer:
    """Return the tokenizer that the class builds from a tokenizer.json, without added tokens.
    Raises ValueError if it cannot."""
    charsmap = _charsmap(file.get("normalizer")) if made_as.keeps_charsmap else None
    unigram = made_as.model["type"] == "Unigram"
    parts: JsonObject = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": charsmap,
        "pre_tokenizer": None,
        "post_processor": file.get("post_processor"),
        "decoder": None,
        "model": _BPE | {"vocab": {}, "merges": []} if unigram else _bpe(made_as, file, unk_token),
    }
    tokenizer = tokenizers.Tokenizer.from_str(msgspec.json.encode(parts).decode())
    if unigram:
        tokenizer.model = _unigram(made_as, file)
    made_as.set_pipeline(tokenizer, config)
    return tokenizer


def _bpe(made_as: TokenizerClass, file: JsonObject, unk_token: str) -> JsonObject:
    vocabulary = file["model"]["vocab"]
    if isinstance(vocabulary, list):  # of (piece, score)
        vocabulary = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    model = {**made_as.model, "vocab": vocabulary, "merges": file["model"].get("merges", [])}
    return {**model, "unk_token": unk_token} if made_as.unk_in_model else model


def _unigram(made_as: TokenizerClass, file: JsonObject) -> models.Unigram:
    vocabulary = file["model"]["vocab"]
    if not isinstance(vocabulary, list):
        raise ValueError("its class needs a Unigram vocabulary")
    # Not by way of JSON, which rounds the scores.
    return models.Unigram([(piece, score) for piece, score in vocabulary], made_as.model["unk_id"])


def _charsmap(normalizer: JsonObject | None) -> JsonObject | None:
    """The first sentencepiece normaliser in the file."""
    if normalizer is None:
        return None
    parts = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return next((part for part in parts if part.get("type") == "Precompiled"), None)


def _set_llama(tokenizer: tokenizers.Tokenizer, config: JsonObject) -> None:
    prefix_space = config.get("add_prefix_space")
    scheme = "never"
    if prefix_space is None or prefix_space:
        scheme = "always" if config.get("legacy") else "first"
    _set_metaspace(tokenizer, scheme, strips=scheme != "never")


def _set_code_llama(tokenizer: tokenizers.Tokenizer, config: JsonObject) -> None:
    prefix_space = config.get("add_prefix_space")
    scheme = "first" if prefix_space is None or prefix_space else "never"
    _set_metaspace(tokenizer, scheme, strips=True)


def _set_metaspace(tokenizer: tokenizers.Tokenizer, scheme: str, *, strips: bool) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme=scheme, split=False
    )
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        parts.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(parts)


def _set_gemma(tokenizer: tokenizers.Tokenizer, _config: JsonObject) -> None:
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous", invert=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )


def _set_gpt2(tokenizer: tokenizers.Tokenizer, config: JsonObject) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=_prefix_space(config))
    tokenizer.decoder = decoders.ByteLevel()


def _set_gpt_neox(tokenizer: tokenizers.Tokenizer, config: JsonObject) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=_prefix_space(config), trim_offsets=config.get("trim_offsets", True)
    )
    tokenizer.decoder = decoders.ByteLevel()


def _set_cohere(tokenizer: tokenizers.Tokenizer, config: JsonObject) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=_prefix_space(config), trim_offsets=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


def _set_qwen(words: str) -> Callable[[tokenizers.Tokenizer, JsonObject], None]:
    def set_pipeline(tokenizer: tokenizers.Tokenizer, config: JsonObject) -> None:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(words), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=_prefix_space(config), use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()

    return set_pipeline


_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Marks belong to words.
_QWEN3_5_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _set_t5(tokenizer: tokenizers.Tokenizer, _config: JsonObject) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(_SPACE, "always", split=True)]
    )
    tokenizer.decoder = decoders.Metaspace(_SPACE, "always", split=True)


def _prefix_space(config: JsonObject) -> bool:
    return bool(config.get("add_prefix_space"))


def _tokens(**names: str) -> dict[str, str]:
    return {f"{name}_token": content for name, content in names.items()}


_LLAMA_TOKENS = _tokens(bos="<s>", eos="</s>", unk="<unk>")
_END = "<|endoftext|>"
_CODE_LLAMA_TOKENS = _tokens(
    prefix="▁<PRE>", middle="▁<MID>", suffix="▁<SUF>", eot="▁<EOT>", fill="<FILL_ME>"
)
_QWEN_TOKENS = _tokens(eos=_END, unk=_END, pad=_END)

# The class of models that name none, or one that takes a tokenizer.json as it is.
NO_CLASS = TokenizerClass({}, lambda _tokenizer, _config: None, {})

TOKENIZER_CLASSES = {
    "CodeLlamaTokenizer": TokenizerClass(
        _FALLBACK_BPE,
        _set_code_llama,
        _LLAMA_TOKENS | _CODE_LLAMA_TOKENS,
        extra_special_tokens=tuple(_CODE_LLAMA_TOKENS.values()),
        unk_in_model=True,
        adds=("bos_token", "$A"),
        not_followed="<FILL_ME>",  # it asks for what belongs between what is around it
    ),
    "CohereTokenizer": TokenizerClass(
        _BYTE_LEVEL_BPE,
        _set_cohere,
        _tokens(
            bos="<BOS_TOKEN>",
            eos="<|END_OF_TURN_TOKEN|>",
            unk="<UNK>",
            sep="<SEP>",
            pad="<PAD>",
            cls="<CLS>",
            mask="<MASK_TOKEN>",
        ),
        adds_special=True,
    ),
    "GPT2Tokenizer": TokenizerClass(
        _BYTE_LEVEL_BPE, _set_gpt2, _tokens(bos=_END, eos=_END, unk=_END)
    ),
    "GPTNeoXTokenizer": TokenizerClass(
        _BYTE_LEVEL_BPE,
        _set_gpt_neox,
        _tokens(bos=_END, eos=_END, unk=_END, pad="<|padding|>"),
        adds=("$A",),
    ),
    "GemmaTokenizer": TokenizerClass(
        _FALLBACK_BPE,
        _set_gemma,
        _tokens(bos="<bos>", eos="<eos>", unk="<unk>", pad="<pad>", mask="<mask>"),
        unk_in_model=True,
    ),
    "LlamaTokenizer": TokenizerClass(_FALLBACK_BPE, _set_llama, _LLAMA_TOKENS),
    "Qwen2Tokenizer": TokenizerClass(
        _BYTE_LEVEL_BPE, _set_qwen(_QWEN2_WORDS), _QWEN_TOKENS, adds_special_plain=True
    ),
    "Qwen3_5Tokenizer": TokenizerClass(_BYTE_LEVEL_BPE, _set_qwen(_QWEN3_5_WORDS), _QWEN_TOKENS),
    "T5Tokenizer": TokenizerClass(
        {"type": "Unigram", "unk_id": 2},
        _set_t5,
        _tokens(eos="</s>", unk="<unk>", pad="<pad>"),
        extra_special_tokens=tuple(f"<extra_id_{i}>" for i in range(100)),
        keeps_charsmap=True,
        adds=("$A", "eos_token"),
    ),
}


# The class that takes a tokenizer.json as it is.
AS_IT_IS = "TokenizersBackend"

# Model types whose models are loaded as they are, whatever class they name.
_AS_THEY_ARE = """
    EvollaModel arctic aria bigbird_pegasus camembertv2-base canary chameleon chatlm cohere_asr
    deepseek_ocr deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl
    deepseek_vl_hybrid deepseek_vl_v2 ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe
    glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode granite granitemoe
    granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 jamba janus
    kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3 minicpmv minicpmv4_6
    minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mixtral modernbert
    modernbert-decoder molmo molmo2 nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid opencua
    openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral smolvlm stablelm
    step3_vl step3p5 umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl
"""
TYPES_AS_THEY_ARE = frozenset(_AS_THEY_ARE.split())

# vLLM's own additions (tokenizers/registry.py): these skip `AutoTokenizer` altogether.
VLLM_TYPES_AS_THEY_ARE = frozenset(
    ["internlm2", "step3_vl", "step3p7", "unlimited-ocr", "unlimited_ocr"]
)

# Model types that get this class, whatever class they name.
FORCED_CLASSES = {
    "hyperclovax_vision_v2": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3_5": "Qwen3_5Tokenizer",
    "qwen3_5_moe": "Qwen3_5Tokenizer",
    "qwen3_5_moe_text": "Qwen3_5Tokenizer",
    "qwen4_exp": "Qwen3_5Tokenizer",
}

# Classes that tokenizer_classes.py rebuilds, and the model types that get one where no class is
# named.
TYPES_OF_CLASS = {
    "CodeLlamaTokenizer": "code_llama",
    "CohereTokenizer": "aya_vision cohere cohere2",
    "GPT2Tokenizer": "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip"
    " instructblipvideo jais2 opt phi starcoder2",
    "GPTNeoXTokenizer": "falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm",
    "GemmaTokenizer": "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text"
    " recurrent_gemma shieldgemma2 t5gemma zaya",
    "LlamaTokenizer": "idefics idefics2",
    "Qwen2Tokenizer": "audioflamingo3 colqwen2 cosmos3_omni fun_asr_nano hunyuan_vl internvl"
    " lighton_ocr ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl"
    " qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp",
    "T5Tokenizer": "mt5 musicgen musicgen_melody switch_transformers t5",
}
_CLASS_OF_TYPE = {
    model_type: name for name, types in TYPES_OF_CLASS.items() for model_type in types.split()
}

# Classes that make something else of a tokenizer.json too, or read other files, and that we do not
# reproduce: of encoders, of speech, of models before 2021.
_NOT_REPRODUCED = """
    Albert Bart Barthez Bartpho Bert BertGeneration BertJapanese BertTokenizerLegacy Bertweet
    BigBird BioGpt Blenderbot BlenderbotSmall ByT5 CLIP CTRL Camembert Canine Clvp CodeGen Cpm
    CpmAnt DPRContextEncoder DPRQuestionEncoder DPRReader Deberta DebertaV2 Dia DistilBert Esm Esmc
    FSMT FastSpeech2Conformer Flaubert Funnel GPTNeoXJapanese GPTSw3 Herbert Lasr LayoutLMv2
    LayoutLMv3 LayoutXLM Luke M2M100 MBart MBart50 MLuke MPNet Marian MarkupLM Mgpstr MobileBert
    MyT5 Nllb Nougat OpenAIGPT PLBart Pegasus Perceiver Phobert ProphetNet Reformer RemBert RoCBert
    RoFormer Roberta SeamlessM4T Siglip Siglip2 Speech2Text SpeechT5 Splinter SqueezeBert Tapas
    Tipsv2 Udop VideoPrism Vits Wav2Vec2CTC Wav2Vec2PhonemeCTC Whisper XGLM XLM XLMRoberta XLNet
"""
NOT_REPRODUCED = frozenset(_NOT_REPRODUCED.split())


def tokenizer_class(tokenizer_config: JsonObject, model_config: JsonObject) -> str:
    """A name in `TYPES_OF_CLASS`, or `AS_IT_IS`; the arguments are tokenizer_config.json and
    config.json. Raises RenderError for a class that we do not reproduce."""
    model_type = model_config.get("model_type")
    named = tokenizer_config.get("tokenizer_class") or model_config.get("tokenizer_class")
    name = _resolve(model_type, named, has_own_code="auto_map" in tokenizer_config)
    if name in TYPES_OF_CLASS:
        return name
    # A name that transformers does not know (one of the model's own code) is loaded as it is.
    if name.removesuffix("Tokenizer") not in NOT_REPRODUCED and name not in NOT_REPRODUCED:
        return AS_IT_IS
    raise RenderError(
        f"tokenizer class {name!r} is not reproduced here; the engine makes something else of"
        " tokenizer.json than it says",
        reason=Reason.NO_TOKENIZER,
    )


def _resolve(model_type: str | None, named: str | None, *, has_own_code: bool) -> str:
    if model_type in VLLM_TYPES_AS_THEY_ARE:
        return AS_IT_IS
    if named is None:
        return _CLASS_OF_TYPE.get(model_type or "", AS_IT_IS)
    if not has_own_code:
        if model_type in TYPES_AS_THEY_ARE:
            return AS_IT_IS
        if model_type in FORCED_CLASSES:
            return FORCED_CLASSES[model_type]
    return named.removesuffix("Fast")
