"""What a model folder says: configs, index, and the shards' headers, read as vLLM would read them.

Errors carry vLLM's (or its libraries') own class names and texts in `Failure`; where they are raised decides which
process logs them.
"""

from __future__ import annotations

import glob
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kv import Attention, attention_of


class Failure(Exception):
    """A start that fails. `kind` names the exception class as a traceback shows it, `text` its message, `frames` the
    traceback template of `tracebacks`."""

    def __init__(self, kind: str, text: str, frames: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.frames = frames


@dataclass(frozen=True)
class Model:
    """A model folder, as far as a start needs it."""

    path: str
    config: dict[str, Any]
    hf_quant: dict[str, Any] | None
    generation: dict[str, Any]
    attention: Attention

    @property
    def text(self) -> dict[str, Any]:
        """The language model's part of the config."""
        return dict(self.config.get("text_config") or self.config)

    @property
    def architecture(self) -> str:
        return str((self.config.get("architectures") or ["UnknownForCausalLM"])[0])

    @property
    def family(self) -> str:
        return str(self.config.get("model_type") or "")

    @property
    def layers(self) -> int:
        return int(self.text.get("num_hidden_layers") or 1)

    @property
    def max_len(self) -> int:
        return int(self.text.get("max_position_embeddings") or 4096)


def _pydantic(text: str) -> Failure:
    return Failure(
        "pydantic_core._pydantic_core.ValidationError",
        "1 validation error for ModelConfig\n"
        f"  Value error, {text} [type=value_error, input_value=ArgsKwargs((), {{'model': ...'auto'}}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
        "config",
    )


def read_model(path: str, *, trust_remote_code: bool) -> Model:
    """Read configs, or raise the `Failure` that the API server would die of."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise _pydantic(
            f"Invalid repository ID or local directory specified: '{path}'.\n"
            "Please verify the following requirements:\n"
            "1. Provide a valid Hugging Face repository ID.\n"
            "2. Specify a local directory that contains a recognized configuration file.\n"
            "   - For Hugging Face models: ensure the presence of a 'config.json'.\n"
            "   - For Mistral models: ensure the presence of a 'params.json'.\n"
        )
    config = _json(folder / "config.json")
    if config.get("auto_map") and not trust_remote_code:
        raise _pydantic(
            f"The repository {path} contains custom code which must be executed to correctly load the model. You can "
            f"inspect the repository content at {folder.resolve()} .\n You can inspect the repository content at "
            f"https://hf.co/{path}.\nPlease pass the argument `trust_remote_code=True` to allow custom code to be run."
        )
    if not config.get("architectures"):
        raise _pydantic("No model architectures are specified")
    names = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tokenizer_config.json")
    if not any((folder / name).is_file() for name in names):
        raise Failure(
            "OSError",
            f"Can't load tokenizer for '{path}'. If you were trying to load it from 'https://huggingface.co/models', make "
            f"sure you don't have a local directory with the same name. Otherwise, make sure '{path}' is the correct path "
            "to a directory containing all relevant files for a tokenizer.",
            "config",
        )
    quant = folder / "hf_quant_config.json"
    generation = folder / "generation_config.json"
    return Model(
        path=path,
        config=config,
        hf_quant=_json(quant) if quant.is_file() else None,
        generation=_json(generation) if generation.is_file() else {},
        attention=attention_of(config),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise Failure(
            "OSError", f"It looks like the config file at '{path}' is not a valid JSON file.", "config"
        ) from None
    return data if isinstance(data, dict) else {}


def pristine_config(path: str) -> dict[str, Any]:
    """The config.json that lies beside the real shards: an overlay folder links to them."""
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        real = Path(os.path.realpath(name)).parent / "config.json"
        try:
            data = json.loads(real.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            break
        return data if isinstance(data, dict) else {}
    return {}


@dataclass(frozen=True)
class Shards:
    """The shard files that a load would read, and those that the index names and the folder lacks."""

    files: tuple[str, ...]
    missing: tuple[str, ...]


def list_shards(path: str) -> Shards:
    """`glob *.safetensors`, filtered by the index, as the default loader does it."""
    files = sorted(glob.glob(os.path.join(path, "*.safetensors")))
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.isfile(index):
        if not files:
            raise Failure("RuntimeError", f"Cannot find any model weights with `{path}`", "load")
        return Shards(tuple(files), ())
    try:
        with open(index, encoding="utf-8") as file:
            named = {os.path.join(path, name) for name in json.load(file)["weight_map"].values()}
    except (ValueError, KeyError) as error:
        raise Failure("json.decoder.JSONDecodeError", str(error), "load") from None
    kept = tuple(name for name in files if name in named)
    if not kept:
        raise Failure("RuntimeError", f"Cannot find any model weights with `{path}`", "load")
    return Shards(kept, tuple(sorted(named - set(files))))


def check_shard(path: str) -> int:
    """Read one shard's header; returns its bytes of tensor data. Raises the error that safetensors raises."""
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            raw = file.read(length) if 0 <= length <= 100_000_000 else b""
    except FileNotFoundError:
        raise Failure("FileNotFoundError", f'No such file or directory: "{path}"', "load") from None
    except OSError as error:
        raise Failure(type(error).__name__, str(error), "load") from None
    if length < 0:
        raise _safetensors("header too small")
    if length > 100_000_000:
        raise _safetensors("header too large")
    if length + 8 > size:
        raise _safetensors("invalid header length")
    try:
        header = json.loads(raw)
        end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _safetensors("invalid JSON in header: EOF while parsing a value at line 1 column 0") from None
    if 8 + length + end != size:
        raise _safetensors("incomplete metadata, file not fully covered")
    return int(end)


def _safetensors(text: str) -> Failure:
    return Failure("safetensors._safetensors_rust.SafetensorError", f"Error while deserializing header: {text}", "load")


def missing_shards(shards: Shards, *, at_least_0_28: bool, quantized: bool) -> bool:
    """What a version does about shards that the index names and the folder lacks: True when it starts without them, which
    ends in garbage. From 0.28 on it refuses; before, only an unquantized model was checked."""
    if not shards.missing:
        return False
    if at_least_0_28:
        listed = "{" + ", ".join(repr(name) for name in shards.missing) + "}"
        raise Failure("FileNotFoundError", f"Weight files referenced in index but missing: {listed}", "load")
    if not quantized:
        raise Failure(
            "ValueError",
            "Following weights were not initialized from checkpoint: {'model.layers.30.self_attn.o_proj.weight'}",
            "load",
        )
    return True
