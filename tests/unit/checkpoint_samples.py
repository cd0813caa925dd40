"""Small configs of models by attention family, for the tests of the model's files. Own work, shapes of published ones."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

from console.checkpoint.card import ModelCard, read_card
from console.checkpoint.quant import read_document

FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}
KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "n_routed_experts": 384,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
    },
    "vision_config": {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27},
    "quantization_config": {
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
        "ignore": ["language_model.lm_head"],
        "quant_algo": "NVFP4",
        "kv_cache_scheme": FP8,
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "quant_method": "modelopt",
    },
}
NESTED = {
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]},
}  # fmt: skip
SPARSE = {**KIMI["text_config"], "model_type": "glm_moe_dsa", "index_topk": 2048, "index_head_dim": 128, "torch_dtype": "bfloat16",
          "quantization_config": KIMI["quantization_config"]}  # fmt: skip
GQA = {
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "quantization_config": KIMI["quantization_config"],
}
COMPRESSED = {**GQA, "quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                                             "kv_cache_scheme": {**FP8, "strategy": "tensor", "symmetric": True}}}  # fmt: skip
COMPRESSED_MLA = {**KIMI, "quantization_config": COMPRESSED["quantization_config"]}
HYBRID = {**GQA, "num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
HYBRID_MLA = {
    **KIMI["text_config"], "model_type": "kimi_linear", "num_hidden_layers": 4, "quantization_config": KIMI["quantization_config"],
    "linear_attn_config": {"kda_layers": [1, 2, 3]},
}  # fmt: skip
UNKNOWN = {"model_type": "new_thing", "quantization_config": KIMI["quantization_config"]}
CLEAN = {**KIMI, "quantization_config": {**KIMI["quantization_config"], "kv_cache_scheme": None}}


def card(config: dict[str, Any], hf_quant: dict[str, Any] | None = None) -> ModelCard:
    """The card of configs given as data."""
    quant = read_document("hf_quant_config.json", json.dumps(hf_quant).encode()) if hf_quant else None
    return read_card(read_document("config.json", json.dumps(config).encode()), quant)


def without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """The config as older ModelOpt wrote it: the quantization stands in hf_quant_config.json alone."""
    data = copy.deepcopy(config)
    del data["quantization_config"]
    return data


def safetensors(path: Path, tensors: dict[str, int], fill: bytes = b"\1") -> None:
    """A safetensors file with a U8 tensor of so many bytes under each name."""
    header, at = {}, 0
    for name, count in tensors.items():
        header[name] = {"dtype": "U8", "shape": [count], "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + fill * at)


def git_blob(data: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - a name, no secret
