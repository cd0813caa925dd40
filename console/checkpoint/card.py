"""What a checkpoint is, read from its config.json and hf_quant_config.json: attention, layers, quantization, KV scheme.

Pure. Nothing is guessed: a figure that the config does not hold is None, and an attention that is not recognised is
`unknown`. Which KV field counts follows vLLM's own reading (DOMAIN A.1), which changed with its versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from console.checkpoint.quant import Document, KvField, Target, scheme_form

Attention = Literal["dense-mla", "sparse-mla", "gqa", "hybrid", "unknown"]
LayerKind = Literal["mla", "full", "sliding", "state"]

# where the language model of a multimodal config stands, in the order in which it is looked for
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_STATE_LAYERS = ("linear_attention", "mamba", "recurrent", "gated_delta", "kda", "short_conv", "conv")
_NO_CACHE = ("moe", "mlp", "-", "E")


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that cache alike. `width`: elements per token and layer, per KV head for `full` and `sliding` (K and V
    together); `window`: tokens that a sliding layer keeps; `index`: bytes per token of a sparse layer's indexer."""

    kind: LayerKind
    count: int
    width: int
    heads: int = 1
    window: int | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class KvReading:
    """The KV dtype that vLLM takes for itself with `--kv-cache-dtype auto`, and where from. `dtype` None: the model's."""

    dtype: Literal["fp8", "nvfp4"] | None
    file: str | None
    path: str | None
    why: str


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A checkpoint in figures; None where the config does not tell. `method`: vLLM's name of the quantization."""

    architecture: str | None
    model_type: str | None
    attention: Attention
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    kv_lora_rank: int | None
    rope_dim: int | None
    vocabulary: int | None
    max_positions: int | None
    dtype: str | None
    method: str | None
    algorithm: str | None
    groups: tuple[LayerGroup, ...]
    fields: tuple[tuple[str, KvField], ...]
    """Every KV field as (file, field)."""
    read_from: str | None
    """The file whose quantization config vLLM uses."""
    warnings: tuple[str, ...]
    config: Mapping[str, Any]
    quantization: Mapping[str, Any] | None

    @property
    def mla(self) -> bool:
        """True when a latent vector is cached in place of keys and values."""
        return any(group.kind == "mla" for group in self.groups)

    @property
    def quantized(self) -> bool:
        """True when any file carries a KV quantization, whether vLLM reads it or not."""
        return any(field.form in ("fp8", "quantized") for _, field in self.fields)


def read_card(config: Document, hf_quant: Document | None = None) -> ModelCard:
    """The card of a model folder's two JSON files."""
    data = config.data
    text = _language_model(data)
    quantization, read_from = _quantization(data, hf_quant)
    groups, attention = _layer_groups(data, text)
    fields = [(config.name, field) for field in config.fields]
    fields += [(hf_quant.name, field) for field in hf_quant.fields] if hf_quant else []
    inner = quantization.get("quantization") if quantization else None
    nested = inner if isinstance(inner, dict) else {}
    return ModelCard(
        architecture=_first(data.get("architectures")) or _first(text.get("architectures")),
        model_type=_text(text.get("model_type")) or _text(data.get("model_type")),
        attention=attention,
        layers=_layer_count(text),
        hidden=_number(text.get("hidden_size")),
        heads=_number(text.get("num_attention_heads")),
        kv_heads=_number(text.get("num_key_value_heads")),
        head_dim=_head_dim(text),
        kv_lora_rank=_number(text.get("kv_lora_rank")),
        rope_dim=_number(text.get("qk_rope_head_dim")),
        vocabulary=_number(text.get("vocab_size")),
        max_positions=_number(text.get("max_position_embeddings")) or _number(data.get("max_position_embeddings")),
        dtype=next(
            (_text(part.get(key)) for part in (data, text) for key in ("dtype", "torch_dtype") if part.get(key)), None
        ),
        method=_method(quantization, nested),
        algorithm=_text((quantization or {}).get("quant_algo")) or _text(nested.get("quant_algo")),
        groups=groups,
        fields=tuple(fields),
        read_from=read_from,
        warnings=config.warnings + (hf_quant.warnings if hf_quant else ()) + _disagreement(config, hf_quant, read_from),
        config=data,
        quantization=quantization,
    )


def effective_kv(card: ModelCard, release: tuple[int, int]) -> KvReading:
    """The KV dtype that vLLM `release` (major, minor) takes from the checkpoint while the flag is `auto` (DOMAIN A.1).

    Before 0.14 ModelOpt's field was ignored. From 0.14 the order is `quantization.kv_cache_scheme`, `kv_cache_scheme`,
    `quantization.kv_cache_quant_algo`, `kv_cache_quant_algo` of the top-level quantization config.
    """
    quantization, file = card.quantization, card.read_from
    if quantization is None or file is None:
        return KvReading(None, None, None, "the checkpoint is not quantized")
    method = card.method or ""
    if method == "compressed-tensors":
        value = quantization.get("kv_cache_scheme")
        if scheme_form(value) == "fp8":
            return KvReading("fp8", file, "kv_cache_scheme", f"the compressed-tensors scheme in {file} says FP8")
        return KvReading(None, file, None, f"{file} has no KV scheme")
    if not method.startswith("modelopt"):
        return KvReading(None, file, None, f"vLLM reads no KV field of quantization method {method or 'unknown'}")
    if release < (0, 14):
        return KvReading(None, file, None, "vLLM before 0.14 ignores ModelOpt's KV field")
    inner = quantization.get("quantization")
    places = [("quantization.", inner)] if isinstance(inner, dict) else []
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for prefix, part in (*places, ("", quantization)):
            value = part.get(key)
            if value is not None:
                return _reading(value, file, prefix + key, release)
    return KvReading(None, file, None, f"{file} sets no KV scheme")


def desired(card: ModelCard) -> Target | None:
    """The KV dtype that the checkpoint's files ask for, whichever vLLM reads them; None when they ask for none."""
    return "fp8" if any(field.form == "fp8" for _, field in card.fields) else None


def _reading(value: Any, file: str, path: str, release: tuple[int, int]) -> KvReading:
    form = scheme_form(value)
    if form == "fp8":
        return KvReading("fp8", file, path, f"{path} in {file} says FP8")
    four_bit = isinstance(value, dict) and value.get("num_bits") == 4 and value.get("type") == "float"
    if release >= (0, 33) and (four_bit or (isinstance(value, str) and value.upper() == "NVFP4")):
        return KvReading("nvfp4", file, path, f"{path} in {file} says NVFP4")
    return KvReading(None, file, path, f"vLLM does not know the scheme at {path} in {file} and falls back to auto")


def _quantization(data: Mapping[str, Any], hf_quant: Document | None) -> tuple[Mapping[str, Any] | None, str | None]:
    """The quantization config that vLLM takes, and the file it stands in."""
    top = data.get("quantization_config")
    if isinstance(top, dict) and top:
        return top, "config.json"
    text = data.get("text_config")
    # Kimi's config class lifts the text part's config to the top before hf_quant_config.json is looked for
    if isinstance(text, dict) and isinstance(text.get("quantization_config"), dict) and hf_quant is None:
        return text["quantization_config"], "config.json"
    if hf_quant is not None:
        return hf_quant.data, "hf_quant_config.json"
    compression = data.get("compression_config")
    return (compression, "config.json") if isinstance(compression, dict) else (None, None)


def _method(quantization: Mapping[str, Any] | None, nested: Mapping[str, Any]) -> str | None:
    if quantization is None:
        return None
    explicit = _text(quantization.get("quant_method")) or _text(nested.get("quant_method"))
    algorithm = _text(quantization.get("quant_algo")) or _text(nested.get("quant_algo"))
    if explicit:
        return explicit.lower().replace("_", "-") if "compressed" in explicit else explicit.lower()
    names = {"FP8": "modelopt", "NVFP4": "modelopt_fp4", "MIXED_PRECISION": "modelopt_mixed"}
    return names.get((algorithm or "").upper()) if algorithm else None


def _disagreement(config: Document, hf_quant: Document | None, read_from: str | None) -> tuple[str, ...]:
    if hf_quant is None or not isinstance(config.data.get("quantization_config"), dict):
        return ()
    said = {
        document.name: any(field.form in ("fp8", "quantized") for field in document.fields)
        for document in (config, hf_quant)
    }
    if len(set(said.values())) == 1:
        return ()
    words = ", ".join(f"{name} {'sets' if on else 'sets no'} KV quantization" for name, on in said.items())
    return (f"the files disagree: {words}; vLLM reads {read_from}",)


def _language_model(data: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _PARTS:
        part = data.get(name)
        if isinstance(part, dict) and ("num_hidden_layers" in part or "num_attention_heads" in part):
            return part
    return data


def _layer_count(text: Mapping[str, Any]) -> int | None:
    count = _number(text.get("num_hidden_layers"))
    if count is None:
        kinds = _kinds(text)
        count = len(kinds) if kinds else None
    return count


def _kinds(text: Mapping[str, Any]) -> list[str] | None:
    """The kind of each layer, where the config lists them."""
    for key in ("layer_types", "layers_block_type", "block_types"):
        value = text.get(key)
        if isinstance(value, list) and value:
            return [str(item) for item in value]
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:  # Nemotron-H: M mamba, * attention, - MLP, E experts
        return [{"M": "mamba", "*": "attention"}.get(letter, letter) for letter in pattern]
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("kda_layers"), list):  # Kimi-Linear
        count = _number(text.get("num_hidden_layers")) or 0
        return ["linear_attention" if index + 1 in linear["kda_layers"] else "attention" for index in range(count)]
    return None


def _layer_groups(data: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[tuple[LayerGroup, ...], Attention]:
    layers = _layer_count(text)
    kinds = _kinds(text)
    state = sum(kind.startswith(_STATE_LAYERS) for kind in kinds) if kinds else 0
    cached = layers or 0
    if kinds:
        cached = sum(not kind.startswith(_STATE_LAYERS) and kind not in _NO_CACHE for kind in kinds)
    sparse = _is_sparse(data, text)
    mla = _mla_width(text)
    if layers and mla:
        index = (_number(text.get("index_head_dim")) or 128) + 4 if sparse else 0  # FP8 key and its scale
        latent = (LayerGroup("mla", cached, mla, index=index),)
        return latent + _state(state), "sparse-mla" if sparse else "hybrid" if state else "dense-mla"
    width, heads = _head_dim(text), _number(text.get("num_key_value_heads")) or _number(text.get("num_attention_heads"))
    if sparse:
        return (), "sparse-mla"
    if not (layers and width and heads):
        return (), "unknown"
    window = _number(text.get("sliding_window"))
    sliding = sum(kind.startswith("sliding") for kind in kinds) if kinds and window else 0
    wide = _number(text.get("global_head_dim")) or width
    few = _number(text.get("num_global_key_value_heads")) or heads
    groups = [LayerGroup("full", cached - sliding, 2 * (wide if sliding else width), few if sliding else heads)]
    if sliding:
        groups.append(LayerGroup("sliding", sliding, 2 * width, heads, window))
    return (*groups, *_state(state)), "hybrid" if state or sliding else "gqa"


def _state(count: int) -> tuple[LayerGroup, ...]:
    return (LayerGroup("state", count, 0),) if count else ()


def _is_sparse(data: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    names = " ".join(
        str(part.get(key)) for part in (data, text) for key in ("model_type", "architectures") if part.get(key)
    ).lower()
    return _number(text.get("index_topk")) is not None or any(
        word in names for word in ("deepseek_v32", "deepseekv32", "deepseek_v4", "deepseekv4", "_dsa", "dsafor")
    )


def _mla_width(text: Mapping[str, Any]) -> int | None:
    """Elements of the latent vector per token and layer: compressed KV plus the shared rotary key."""
    rank = _number(text.get("kv_lora_rank"))
    return rank + (_number(text.get("qk_rope_head_dim")) or 0) if rank else None


def _head_dim(text: Mapping[str, Any]) -> int | None:
    explicit = _number(text.get("head_dim"))
    hidden, heads = _number(text.get("hidden_size")), _number(text.get("num_attention_heads"))
    return explicit or (hidden // heads if hidden and heads else None)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _first(value: Any) -> str | None:
    return _text(value[0]) if isinstance(value, list) and value else None
