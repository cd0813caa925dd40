"""Small real checkpoints with the layout of big ones: what the practice hub serves and the stand-in vLLM reads.

`kimi` has the layout of nvidia/Kimi-K2.5-NVFP4: config.json with a KV scheme of FP8 (indent 4, no final newline), a nested
hf_quant_config.json, an index and 119 shards; 61 layers, complete for the (shrunken) architecture its config describes.
`glm` has that of a GLM-5 with sparse attention. Content is deterministic, so that hashes and the commit never change.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["kimi", "glm"]
REPOSITORIES: dict[str, str] = {"kimi": "nvidia/Kimi-K2.5-NVFP4", "glm": "zai-org/GLM-5-NVFP4"}
_HIDDEN, _HEADS, _NOPE, _VALUE, _RANK, _ROPE, _QRANK, _MOE, _EXPERTS, _VOCAB = 16, 8, 4, 4, 512, 64, 16, 16, 4, 512
_SIZES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
Tensor = tuple[str, str, tuple[int, ...]]
"""Name, type, shape."""


PRACTICE_COMMIT = "5e1f7a9c3b2d4e6f8091a2b3c4d5e6f708192a3b"
"""The commit under which the practice hub serves the checkpoint, and that the rehearsal profile pins; a made-up name."""


def make_checkpoint(folder: Path, kind: Kind = "kimi", shards: int = 119) -> None:
    """Write the checkpoint into `folder`; files of the right size that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = list(_tensors(kind))
    groups = _split(tensors, shards)
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        name = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        weight_map.update((tensor[0], name) for tensor in group)
        _keep(folder / name, _shard(group))
    total = sum(_bytes(tensor) for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _keep(folder / "model.safetensors.index.json", json.dumps(index, indent=2).encode())
    for name, data in _small_files(kind).items():
        _keep(folder / name, data)


def make_old_checkpoint(folder: Path) -> None:
    """The model that the practice node serves before a redeploy."""
    make_checkpoint(folder, "glm", shards=24)


def _keep(path: Path, data: bytes) -> None:
    if not path.is_file() or path.stat().st_size != len(data):
        path.write_bytes(data)


def _layers(kind: Kind) -> int:
    return 61 if kind == "kimi" else 78


def _prefix(kind: Kind) -> str:
    return "language_model." if kind == "kimi" else ""


def _tensors(kind: Kind) -> Iterator[Tensor]:
    """Every tensor of the model, in the order of the layers."""
    head = _prefix(kind)
    yield f"{head}model.embed_tokens.weight", "BF16", (_VOCAB, _HIDDEN)
    for layer in range(_layers(kind)):
        yield from _layer(
            f"{head}model.layers.{layer}.", dense=layer < (1 if kind == "kimi" else 3), sparse=kind == "glm"
        )
    yield f"{head}model.norm.weight", "BF16", (_HIDDEN,)
    yield f"{head}lm_head.weight", "BF16", (_VOCAB, _HIDDEN)
    if kind == "kimi":
        yield "vision_tower.patch_embed.proj.weight", "BF16", (_HIDDEN, 3, 4, 4)
        yield "mm_projector.proj.0.weight", "BF16", (_HIDDEN, _HIDDEN)


def _layer(head: str, *, dense: bool, sparse: bool) -> Iterator[Tensor]:
    attention = head + "self_attn."
    yield attention + "q_a_proj.weight", "BF16", (_QRANK, _HIDDEN)
    yield attention + "q_a_layernorm.weight", "BF16", (_QRANK,)
    yield attention + "q_b_proj.weight", "BF16", (_HEADS * (_NOPE + _ROPE), _QRANK)
    yield attention + "kv_a_proj_with_mqa.weight", "BF16", (_RANK + _ROPE, _HIDDEN)
    yield attention + "kv_a_layernorm.weight", "BF16", (_RANK,)
    yield attention + "kv_b_proj.weight", "BF16", (_HEADS * (_NOPE + _VALUE), _RANK)
    yield attention + "o_proj.weight", "BF16", (_HIDDEN, _HEADS * _VALUE)
    yield attention + "k_proj.k_scale", "F32", ()
    yield attention + "v_proj.v_scale", "F32", ()
    if sparse:
        yield attention + "indexer.wk.weight", "BF16", (_ROPE, _HIDDEN)
    yield head + "input_layernorm.weight", "BF16", (_HIDDEN,)
    yield head + "post_attention_layernorm.weight", "BF16", (_HIDDEN,)
    if dense:
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield from _packed(f"{head}mlp.{name}")
        return
    yield head + "mlp.gate.weight", "BF16", (_EXPERTS, _HIDDEN)
    yield head + "mlp.gate.e_score_correction_bias", "F32", (_EXPERTS,)
    for expert in (*(f"experts.{number}" for number in range(_EXPERTS)), "shared_experts"):
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield from _packed(f"{head}mlp.{expert}.{name}")


def _packed(name: str) -> Iterator[Tensor]:
    """An NVFP4 matrix: two values per byte, a scale per 16, a scale for all."""
    yield name + ".weight", "U8", (_MOE, _HIDDEN // 2)
    yield name + ".weight_scale", "F8_E4M3", (_MOE, _HIDDEN // 16)
    yield name + ".weight_scale_2", "F32", ()
    yield name + ".input_scale", "F32", ()


def _bytes(tensor: Tensor) -> int:
    count = 1
    for side in tensor[2]:
        count *= side
    return count * _SIZES[tensor[1]]


def _split(tensors: list[Tensor], shards: int) -> list[list[Tensor]]:
    """The tensors in `shards` runs of about the same size, none of them empty."""
    total = sum(_bytes(tensor) for tensor in tensors)
    groups: list[list[Tensor]] = [[]]
    done = 0
    for number, tensor in enumerate(tensors):
        left = len(tensors) - number
        full = done >= total * len(groups) / shards
        if groups[-1] and len(groups) < shards and (full or left == shards - len(groups)):
            groups.append([])
        groups[-1].append(tensor)
        done += _bytes(tensor)
    return groups


def _shard(group: list[Tensor]) -> bytes:
    """A safetensors file: length, header, data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, offset = [], 0
    for tensor in group:
        size = _bytes(tensor)
        header[tensor[0]] = {"dtype": tensor[1], "shape": list(tensor[2]), "data_offsets": [offset, offset + size]}
        parts.append(hashlib.shake_128(tensor[0].encode()).digest(size))
        offset += size
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + b"".join(parts)


def _small_files(kind: Kind) -> dict[str, bytes]:
    """Everything beside the weights."""
    ignore = _ignored(kind)
    fp8 = {"dynamic": False, "num_bits": 8, "type": "float"}
    quantization = {
        "config_groups": {
            "group_0": {
                "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["Linear"],
            }
        },
        "ignore": ignore,
        "quant_algo": "NVFP4",
        "kv_cache_scheme": fp8,
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "quant_method": "modelopt",
    }
    separate = {
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": ignore,
        },
    }
    config = _kimi_config() if kind == "kimi" else _glm_config()
    config["quantization_config"] = quantization
    indent, end = (4, "") if kind == "kimi" else (2, "\n")
    generation = {"max_length": 262144, "temperature": 0.6, "top_p": 0.95, "eos_token_id": 163586}
    code = (
        {"configuration_kimi_k25.py": b'"""Stands for the remote code of the real repository."""\n'}
        if kind == "kimi"
        else {}
    )
    return {
        **code,
        "config.json": (json.dumps(config, indent=indent) + end).encode(),
        "hf_quant_config.json": (json.dumps(separate, indent=indent) + end).encode(),
        "generation_config.json": json.dumps(generation, indent=2).encode(),
        "tokenizer.json": json.dumps(_tokenizer(), indent=1).encode(),
        "tokenizer_config.json": json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "[BOS]",
                "eos_token": "[EOS]",
                "model_max_length": 262144,
            },
            indent=2,
        ).encode(),
        "chat_template.jinja": b"{% for m in messages %}<|im_{{ m['role'] }}|>{{ m['content'] }}<|im_end|>{% endfor %}",
        "README.md": (
            f"# {REPOSITORIES[kind]}, practice size\n\nA checkpoint of random numbers in the layout of the real one, for "
            "rehearsals of Relaunch. It computes nothing.\n"
        ).encode(),
    }


def _ignored(kind: Kind) -> list[str]:
    """Modules that stay unquantized: the head, and each layer's attention."""
    head = _prefix(kind)
    return [f"{head}lm_head", *(f"{head}model.layers.{layer}.self_attn*" for layer in range(_layers(kind)))] + (
        ["mm_projector*", "vision_tower*"] if kind == "kimi" else []
    )


def _text(kind: Kind) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM" if kind == "kimi" else "GlmMoeDsaForCausalLM"],
        "model_type": "kimi_k2" if kind == "kimi" else "glm_moe_dsa",
        "attention_bias": False,
        "bos_token_id": 163584,
        "eos_token_id": 163586,
        "first_k_dense_replace": 1 if kind == "kimi" else 3,
        "hidden_act": "silu",
        "hidden_size": _HIDDEN,
        "intermediate_size": _MOE,
        "kv_lora_rank": _RANK,
        "max_position_embeddings": 262144 if kind == "kimi" else 202752,
        "moe_intermediate_size": _MOE,
        "moe_layer_freq": 1,
        "n_routed_experts": _EXPERTS,
        "n_shared_experts": 1,
        "num_attention_heads": _HEADS,
        "num_experts_per_tok": 2,
        "num_hidden_layers": _layers(kind),
        "num_key_value_heads": _HEADS,
        "q_lora_rank": _QRANK,
        "qk_nope_head_dim": _NOPE,
        "qk_rope_head_dim": _ROPE,
        "rms_norm_eps": 1e-05,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "v_head_dim": _VALUE,
        "vocab_size": _VOCAB,
    }


def _kimi_config() -> dict[str, Any]:
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_kimi_k25.KimiK25Config"},
        "bos_token_id": 163584,
        "dtype": "bfloat16",
        "eos_token_id": 163586,
        "media_placeholder_token_id": 163605,
        "model_type": "kimi_k25",
        "pad_token_id": 163839,
        "text_config": _text("kimi"),
        "tie_word_embeddings": False,
        "vision_config": {"model_type": "moonvit3d", "vt_hidden_size": _HIDDEN, "vt_num_hidden_layers": 1},
    }


def _glm_config() -> dict[str, Any]:
    return {**_text("glm"), "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 8}


def _tokenizer() -> dict[str, Any]:
    """A word-level tokenizer in the file format of `tokenizers`."""
    words = [
        "[BOS]",
        "[EOS]",
        "[UNK]",
        "the",
        "of",
        "and",
        "to",
        "a",
        "in",
        "is",
        "model",
        "capital",
        "France",
        "Paris",
    ]
    words += [f"w{number}" for number in range(_VOCAB - len(words))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "[UNK]",
        },
    }
