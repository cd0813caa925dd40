"""Everything a start has decided before the first process: the arguments, the model, the KV type, the memory, the faults."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from . import faults, kv
from .gpu_state import Machine, machine
from .log import Log
from .model import Failure, Model, pristine_config, read_model
from .pace import Pace
from .versions import Traits


@dataclass(frozen=True)
class Launch:
    """One start of a server."""

    args: argparse.Namespace
    traits: Traits
    root: Path
    pace: Pace
    machine: Machine
    model: Model
    names: tuple[str, ...]
    """Served model names."""
    ranks: int
    max_len: int
    """-1: whatever fits."""
    kv: kv.KvDtype
    quantization: str | None
    utilization: float
    faults: frozenset[str]

    def has(self, fault: str) -> bool:
        return fault in self.faults


def resolve(args: argparse.Namespace, traits: Traits, root: Path, pace: Pace, log: Log) -> Launch:
    """Read the model and settle what the API server settles; raises `Failure`. Logs stages 2 to 5 of DOMAIN C.2."""
    path = args.model_tag or args.model
    if args.trust_remote_code and traits.release < (0, 20, 0):
        log.raw(
            "The argument `trust_remote_code` is to be used with Auto classes. It has no effect here and is ignored."
        )
    model = read_model(path, trust_remote_code=args.trust_remote_code)
    on = faults.for_model(root, model.family)
    pace.pause(0.25)
    log.info(traits.where("model.py"), f"Resolved architecture: {model.architecture}")
    max_len = model.max_len if args.max_model_len is None else args.max_model_len
    if max_len > model.max_len:
        raise _too_long(max_len, model)
    log.info(_line(traits, "model.py", "max_len"), f"Using max model len {max_len if max_len > 0 else model.max_len}")
    quantization = _quantization(args, model, traits)
    if quantization == "modelopt_fp4":
        text = "Detected ModelOpt NVFP4 checkpoint (quant_algo=NVFP4). Please note that the format is experimental and could change in future."
        log.warning(traits.where("modelopt.py"), text)
    cache = _kv_dtype(args, model, traits, on)
    if cache.warning:
        log.warning("torch_utils.py:271", cache.warning)
    if cache.dtype.startswith("fp8"):
        name = traits.fp8_name if cache.dtype in ("fp8", "fp8_e4m3") else cache.dtype
        log.info(
            traits.where("cache.py"),
            f"Using {name} data type to store kv cache. It reduces the GPU memory footprint and boosts the performance. "
            "Meanwhile, it may cause accuracy drop without a proper scaling factor",
        )
    batched = args.max_num_batched_tokens or 8192
    log.info(traits.where("scheduler.py"), f"Chunked prefill is enabled with max_num_batched_tokens={batched}.")
    log.info(traits.where("vllm.py"), "Asynchronous scheduling is enabled.")
    what = machine(root)
    ranks = int(args.tensor_parallel_size)
    if ranks > what.count:
        raise _too_many_ranks(ranks, what.count)
    heads = int(model.text.get("num_attention_heads") or ranks)
    if heads % ranks:
        text = f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({ranks})."
        raise Failure("pydantic_core._pydantic_core.ValidationError", _one(text, "VllmConfig"), "config")
    return Launch(
        args=args,
        traits=traits,
        root=root,
        pace=pace,
        machine=what,
        model=model,
        names=tuple(args.served_model_name or [path]),
        ranks=ranks,
        max_len=max_len,
        kv=cache,
        quantization=quantization,
        utilization=float(args.gpu_memory_utilization),
        faults=on,
    )


def _kv_dtype(args: argparse.Namespace, model: Model, traits: Traits, on: frozenset[str]) -> kv.KvDtype:
    """The KV type; with the fault `fp8-kv` that of the pristine folder, as when a re-download undid an edit."""
    config, hf_quant = model.config, model.hf_quant
    if "fp8-kv" in on:
        config = pristine_config(model.path) or config
    return kv.resolve_kv_dtype(args.kv_cache_dtype, config, hf_quant, traits.release)


def _quantization(args: argparse.Namespace, model: Model, traits: Traits) -> str | None:
    try:
        found = kv.quantization_method(model.config, model.hf_quant, traits.release)
    except kv.QuantizationRefused as error:
        raise Failure(
            "pydantic_core._pydantic_core.ValidationError", _one(str(error), "VllmConfig"), "config"
        ) from None
    asked = args.quantization
    if asked and found and asked != found:
        text = (
            f"Quantization method specified in the model config ({found}) does not match the quantization method specified "
            f"in the `quantization` argument ({asked})."
        )
        raise Failure("pydantic_core._pydantic_core.ValidationError", _one(text, "ModelConfig"), "config")
    return found or asked


def _one(text: str, cls: str) -> str:
    return (
        f"1 validation error for {cls}\n  Value error, {text} [type=value_error, input_value=ArgsKwargs((), "
        "{'model': ...'auto'}), input_type=ArgsKwargs]\n    For further information visit "
        "https://errors.pydantic.dev/2.12/v/value_error"
    )


def _too_long(asked: int, model: Model) -> Failure:
    text = (
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
        f"(max_position_embeddings={model.max_len} or model_max_length=None in model's config.json). To allow overriding "
        "this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
    )
    return Failure("pydantic_core._pydantic_core.ValidationError", _one(text, "ModelConfig"), "config")


def _too_many_ranks(ranks: int, count: int) -> Failure:
    text = (
        f"World size ({ranks}) is larger than the number of available GPUs ({count}) in this node. If this is intentional "
        "and you are using:\n- ray, set '--distributed-executor-backend ray'.\n- multiprocessing, set '--nnodes' "
        "appropriately."
    )
    return Failure("pydantic_core._pydantic_core.ValidationError", _one(text, "ParallelConfig"), "config")


def _line(traits: Traits, file: str, key: str) -> str:
    return f"{file}:{traits.lines.get(key, 100)}"
