"""Make a tiny model that a real vLLM serves as it serves Kimi: run with the Python of the real vLLM's environment.

    VENV/bin/python tests/vllm/tiny_kimi.py FOLDER

DeepSeek-V3's architecture with Kimi's cache geometry (512 + 64 per token), experts, 119 shards, and Kimi's quantization
config: ModelOpt's NVFP4 with an FP8 KV scheme. `ignore: ["*"]` leaves every weight in bfloat16, so that a CPU can hold them.
The weights make it a chain of words: each token has one successor, and after the chat template that chain is ANSWER. So a
greedy answer makes sense on any machine, and all layers run all the same.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ANSWER = "Paris is the capital of France, a city on its river Seine."
SHARDS = 119
BOS, EOS = "<|bos|>", "<|eos|>"
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LAYERS, HIDDEN, DENSE, EXPERT, EXPERTS, HEADS = 4, 256, 512, 64, 16, 4
QUERY_RANK, RANK, NOPE, ROPE, VALUE = 128, 512, 128, 64, 128
Tensors = dict[str, torch.Tensor]


def make_tokenizer(folder: Path) -> Tokenizer:
    """Byte-level BPE of some 1000 tokens, in which every word of ANSWER is a token of its own."""
    corpus = [f"user system assistant {ANSWER}"] * 200
    corpus += [f"request {n} asks for {n * 7} tokens while rank {n % 8} reads shard {n % 119}." for n in range(400)]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[BOS, EOS, "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": 262144,
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2))
    return tokenizer


def config(vocabulary: int) -> dict[str, Any]:
    """config.json, with the quantization config that nvidia/Kimi-K2.5-NVFP4 has."""
    four_bit = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "moe_intermediate_size": EXPERT,
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 0,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "max_position_embeddings": 16384,
        "rope_theta": 50000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "quantization_config": {
            "config_groups": {
                "group_0": {"input_activations": four_bit, "weights": four_bit, "targets": ["Linear"]},
            },
            "ignore": ["*"],
            "quant_algo": "NVFP4",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.41.0"},
            "quant_method": "modelopt",
        },
    }


def weights(tokenizer: Tokenizer, vocabulary: int) -> Tensors:
    """Every tensor, bfloat16. What the layers add is small against the embedding, so that the head sees the last token."""
    torch.manual_seed(7)
    embedding = torch.randn(vocabulary, HIDDEN)
    head = 0.05 * torch.randn(vocabulary, HIDDEN)
    words = tokenizer.encode(ANSWER, add_special_tokens=False).ids
    begin = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids[-1]
    chain = [begin, *words, tokenizer.token_to_id(EOS)]
    if len(set(chain)) != len(chain):
        raise SystemExit(f"a token stands twice in the answer: {tokenizer.encode(ANSWER).tokens}")
    for token, successor in itertools.pairwise(chain):
        head[successor] += embedding[token]
    tensors = {"model.embed_tokens.weight": embedding}
    for layer in range(LAYERS):
        tensors |= _layer(f"model.layers.{layer}.", dense=layer == 0)
    tensors |= {"model.norm.weight": torch.ones(HIDDEN), "lm_head.weight": head}
    return {
        name: tensor if name.endswith("e_score_correction_bias") else tensor.to(torch.bfloat16)
        for name, tensor in tensors.items()
    }


def _layer(at: str, *, dense: bool) -> Tensors:
    attention = at + "self_attn."
    made = {
        attention + "q_a_proj.weight": _random(QUERY_RANK, HIDDEN),
        attention + "q_a_layernorm.weight": torch.ones(QUERY_RANK),
        attention + "q_b_proj.weight": _random(HEADS * (NOPE + ROPE), QUERY_RANK),
        attention + "kv_a_proj_with_mqa.weight": _random(RANK + ROPE, HIDDEN),
        attention + "kv_a_layernorm.weight": torch.ones(RANK),
        attention + "kv_b_proj.weight": _random(HEADS * (NOPE + VALUE), RANK),
        attention + "o_proj.weight": _random(HIDDEN, HEADS * VALUE),
        at + "input_layernorm.weight": torch.ones(HIDDEN),
        at + "post_attention_layernorm.weight": torch.ones(HIDDEN),
    }
    if dense:
        return made | _mlp(at + "mlp.", DENSE)
    made[at + "mlp.gate.weight"] = _random(EXPERTS, HIDDEN)
    made[at + "mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
    for expert in range(EXPERTS):
        made |= _mlp(f"{at}mlp.experts.{expert}.", EXPERT)
    return made | _mlp(at + "mlp.shared_experts.", EXPERT)


def _mlp(at: str, width: int) -> Tensors:
    return {
        at + "gate_proj.weight": _random(width, HIDDEN),
        at + "up_proj.weight": _random(width, HIDDEN),
        at + "down_proj.weight": _random(HIDDEN, width),
    }


def _random(*shape: int) -> torch.Tensor:
    return 0.02 * torch.randn(*shape)


def save(tensors: Tensors, folder: Path) -> None:
    """119 shards and their index, named as the big checkpoint's."""
    names = list(tensors)
    shards: list[list[str]] = [[] for _ in range(SHARDS)]
    for position, name in enumerate(names):
        shards[position * SHARDS // len(names)].append(name)
    places: dict[str, str] = {}
    for number, group in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{SHARDS:06d}.safetensors"
        save_file({name: tensors[name].contiguous() for name in group}, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(group, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def make(folder: Path) -> None:
    """The whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(folder)
    vocabulary = (tokenizer.get_vocab_size() + 63) // 64 * 64
    (folder / "config.json").write_text(json.dumps(config(vocabulary), indent=4))
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    save(weights(tokenizer, vocabulary), folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
