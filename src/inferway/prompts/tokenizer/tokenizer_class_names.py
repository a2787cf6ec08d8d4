"""Which of transformers' tokenizer classes an engine uses for a model.

The rules are those of `AutoTokenizer.from_pretrained` in transformers 5.19 as vLLM 0.32 calls it
(models/auto/tokenization_auto.py, vllm/tokenizers/registry.py), and so are the names:
tests/prompts/test_tokenizer_class_names.py compares them with transformers' own lists.
"""

from __future__ import annotations

from typing import Any

from inferway.errors import RenderError
from inferway.model import Reason

JsonObject = dict[str, Any]

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
