"""Tracebacks as vLLM prints them: frame lists by where a start dies, rendered in CPython's form.

Own frames in the shape of the real ones (file, function, statement); line numbers are those of no particular build.
"""

from __future__ import annotations

import os
import sys

Frame = tuple[str, str, str]
"""File within its package tree, function, statement."""

_WORKER_TOP: tuple[Frame, ...] = (
    ("vllm/v1/executor/multiproc_executor.py:754", "worker_main", "worker = WorkerProc(*args, **kwargs)"),
    ("vllm/v1/executor/multiproc_executor.py:580", "__init__", "self.worker.load_model()"),
    ("vllm/v1/worker/gpu_worker.py:292", "load_model", "self.model_runner.load_model(eep_scale_up=eep_scale_up)"),
    ("vllm/v1/worker/gpu_model_runner.py:4143", "load_model", "self.model = model_loader.load_model("),
)
_ATTENTION: tuple[Frame, ...] = (
    ("vllm/model_executor/model_loader/base_loader.py:54", "load_model", "model = initialize_model("),
    (
        "vllm/model_executor/model_loader/utils.py:54",
        "initialize_model",
        "model = model_class(vllm_config=vllm_config, prefix=prefix)",
    ),
    ("vllm/model_executor/models/kimi_k25.py:385", "__init__", "self.language_model = init_vllm_registered_model("),
    (
        "vllm/model_executor/models/utils.py:366",
        "init_vllm_registered_model",
        "return initialize_model(vllm_config=vllm_config, prefix=prefix)",
    ),
    (
        "vllm/model_executor/model_loader/utils.py:54",
        "initialize_model",
        "model = model_class(vllm_config=vllm_config, prefix=prefix)",
    ),
    ("vllm/model_executor/models/deepseek_v2.py:1210", "__init__", "self.model = self.model_cls("),
    ("vllm/compilation/decorators.py:305", "__init__", "old_init(self, **kwargs)"),
    (
        "vllm/model_executor/models/deepseek_v2.py:1067",
        "__init__",
        "self.start_layer, self.end_layer, self.layers = make_layers(",
    ),
    (
        "vllm/model_executor/models/utils.py:707",
        "make_layers",
        'maybe_offload_to_cpu(layer_fn(prefix=f"{prefix}.{idx}"))',
    ),
    ("vllm/model_executor/models/deepseek_v2.py:1069", "<lambda>", "lambda prefix: DeepseekV2DecoderLayer("),
    ("vllm/model_executor/models/deepseek_v2.py:941", "__init__", "self.self_attn = attn_cls("),
    ("vllm/model_executor/models/deepseek_v2.py:875", "__init__", "self.mla_attn = MultiHeadLatentAttentionWrapper("),
    ("vllm/model_executor/layers/mla.py:95", "__init__", "self.mla_attn = MLAAttention("),
    ("vllm/model_executor/layers/attention/mla_attention.py:330", "__init__", "self.attn_backend = get_attn_backend("),
    ("vllm/v1/attention/selector.py:83", "get_attn_backend", "return _cached_get_attn_backend("),
    (
        "vllm/v1/attention/selector.py:96",
        "_cached_get_attn_backend",
        "attention_cls = current_platform.get_attn_backend_cls(",
    ),
    ("vllm/platforms/cuda.py:326", "get_attn_backend_cls", "raise ValueError("),
)
_LOAD: tuple[Frame, ...] = (
    ("vllm/model_executor/model_loader/base_loader.py:62", "load_model", "self.load_weights(model, model_config)"),
    (
        "vllm/model_executor/model_loader/default_loader.py:289",
        "load_weights",
        "loaded_weights = model.load_weights(self.get_all_weights(model_config, model))",
    ),
    (
        "vllm/model_executor/models/kimi_k25.py:512",
        "load_weights",
        "return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)",
    ),
    (
        "vllm/model_executor/models/utils.py:341",
        "load_weights",
        'autoloaded_weights = set(self._load_module("", self.module, weights))',
    ),
    (
        "vllm/model_executor/models/utils.py:288",
        "_load_module",
        "for child_prefix, child_weights in self._groupby_prefix(weights):",
    ),
    (
        "vllm/model_executor/models/utils.py:172",
        "_groupby_prefix",
        "for prefix, group in itertools.groupby(weights_by_parts, key=lambda x: x[0][0]):",
    ),
    (
        "vllm/model_executor/model_loader/default_loader.py:262",
        "get_all_weights",
        "yield from self._get_weights_iterator(primary_weights)",
    ),
    (
        "vllm/model_executor/model_loader/weight_utils.py:694",
        "safetensors_weights_iterator",
        'with safe_open(st_file, framework="pt") as f:',
    ),
)
_CAPTURE: tuple[Frame, ...] = (
    ("vllm/v1/executor/multiproc_executor.py:829", "worker_busy_loop", "output = func(*args, **kwargs)"),
    (
        "vllm/v1/worker/gpu_worker.py:478",
        "compile_or_warm_up_model",
        "cuda_graph_memory_bytes = self.model_runner.capture_model()",
    ),
    ("vllm/v1/worker/gpu_model_runner.py:5024", "capture_model", "self._capture_cudagraphs("),
    ("vllm/v1/worker/gpu_model_runner.py:5124", "_capture_cudagraphs", "self._dummy_run("),
    ("torch/utils/_contextlib.py:120", "decorate_context", "return func(*args, **kwargs)"),
    ("vllm/v1/worker/gpu_model_runner.py:4620", "_dummy_run", "outputs = self.model("),
    ("vllm/compilation/cuda_graph.py:222", "__call__", "return self.runnable(*args, **kwargs)"),
    ("vllm/compilation/piecewise_backend.py:176", "__call__", "return self.compiled_graph_for_general_shape(*args)"),
    ("torch/_inductor/standalone_compile.py:63", "__call__", "return self._compiled_fn(*args)"),
    ("torch/_inductor/output_code.py:618", "__call__", "return self.current_callable(inputs)"),
    ("torch/_inductor/utils.py:3116", "run", "out = model(new_inputs)"),
    (
        "vllm/model_executor/layers/fused_moe/layer.py:1683",
        "forward_impl",
        "final_hidden_states = self.quant_method.apply(",
    ),
    (
        "vllm/model_executor/layers/fused_moe/flashinfer_cutlass_moe.py:211",
        "apply",
        "output = torch.empty(output_shape, dtype=self.out_dtype, device=hidden_states.device)",
    ),
)
_MEMORY: tuple[Frame, ...] = (
    ("vllm/v1/executor/multiproc_executor.py:754", "worker_main", "worker = WorkerProc(*args, **kwargs)"),
    ("vllm/v1/executor/multiproc_executor.py:573", "__init__", "self.worker.init_device()"),
    ("vllm/v1/worker/worker_base.py:326", "init_device", "self.worker.init_device()  # type: ignore"),
    (
        "vllm/v1/worker/gpu_worker.py:247",
        "init_device",
        "self.requested_memory = request_memory(init_snapshot, self.cache_config)",
    ),
    ("vllm/v1/worker/utils.py:102", "request_memory", "raise ValueError("),
)
WORKER: dict[str, tuple[Frame, ...]] = {
    "attention": _WORKER_TOP + _ATTENTION,
    "load": _WORKER_TOP + _LOAD,
    "capture": _CAPTURE,
    "memory": _MEMORY,
}
_CORE_TOP: tuple[Frame, ...] = (
    (
        "vllm/v1/engine/core.py:996",
        "run_engine_core",
        "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)",
    ),
    ("vllm/v1/engine/core.py:740", "__init__", "super().__init__("),
)
CORE: dict[str, tuple[Frame, ...]] = {
    "init": (
        *_CORE_TOP,
        ("vllm/v1/engine/core.py:106", "__init__", "self.model_executor = executor_class(vllm_config)"),
        ("vllm/v1/executor/abstract.py:103", "__init__", "self._init_executor()"),
        (
            "vllm/v1/executor/multiproc_executor.py:166",
            "_init_executor",
            "self.workers = WorkerProc.wait_for_ready(unready_workers)",
        ),
        ("vllm/v1/executor/multiproc_executor.py:680", "wait_for_ready", "raise e from None"),
    ),
    "kv": (
        *_CORE_TOP,
        ("vllm/v1/engine/core.py:113", "__init__", "kv_cache_config = self._initialize_kv_caches(vllm_config)"),
        ("vllm/v1/engine/core.py:243", "_initialize_kv_caches", "kv_cache_configs = get_kv_cache_configs("),
        ("vllm/v1/core/kv_cache_utils.py:1516", "get_kv_cache_configs", "_check_enough_kv_cache_memory("),
        ("vllm/v1/core/kv_cache_utils.py:635", "_check_enough_kv_cache_memory", "raise ValueError("),
    ),
    "capture": (
        *_CORE_TOP,
        ("vllm/v1/engine/core.py:113", "__init__", "kv_cache_config = self._initialize_kv_caches(vllm_config)"),
        (
            "vllm/v1/engine/core.py:268",
            "_initialize_kv_caches",
            "self.model_executor.initialize_from_config(kv_cache_configs)",
        ),
        (
            "vllm/v1/executor/abstract.py:116",
            "initialize_from_config",
            'self.collective_rpc("compile_or_warm_up_model")',
        ),
        ("vllm/v1/executor/multiproc_executor.py:375", "collective_rpc", "return aggregate(get_response())"),
        ("vllm/v1/executor/multiproc_executor.py:358", "get_response", "raise RuntimeError("),
    ),
}
_API_TOP: tuple[Frame, ...] = (
    ("bin/vllm:10", "<module>", "sys.exit(main())"),
    ("vllm/entrypoints/cli/main.py:73", "main", "args.dispatch_function(args)"),
    ("vllm/entrypoints/cli/serve.py:111", "cmd", "uvloop.run(run_server(args))"),
    ("uvloop/__init__.py:96", "run", "return __asyncio.run("),
    ("lib/asyncio/runners.py:195", "run", "return runner.run(main)"),
    ("lib/asyncio/runners.py:118", "run", "return self._loop.run_until_complete(task)"),
    ("uvloop/__init__.py:48", "wrapper", "return await main"),
)
_API_BUILD: tuple[Frame, ...] = (
    (
        "vllm/entrypoints/openai/api_server.py:457",
        "run_server",
        "await run_server_worker(listen_address, sock, args, **uvicorn_kwargs)",
    ),
    ("vllm/entrypoints/openai/api_server.py:476", "run_server_worker", "async with build_async_engine_client("),
    ("lib/contextlib.py:210", "__aenter__", "return await anext(self.gen)"),
    (
        "vllm/entrypoints/openai/api_server.py:96",
        "build_async_engine_client",
        "async with build_async_engine_client_from_engine_args(",
    ),
    ("lib/contextlib.py:210", "__aenter__", "return await anext(self.gen)"),
)
API: dict[str, tuple[Frame, ...]] = {
    "bind": (
        *_API_TOP,
        ("vllm/entrypoints/openai/api_server.py:456", "run_server", "listen_address, sock = setup_server(args)"),
        ("vllm/entrypoints/openai/api_server.py:428", "setup_server", "sock = create_server_socket(sock_addr)"),
        ("vllm/entrypoints/openai/api_server.py:376", "create_server_socket", "sock.bind(addr)"),
    ),
    "config": (
        *_API_TOP,
        *_API_BUILD,
        ("vllm/entrypoints/openai/api_server.py:122", "build_async_engine_client_from_engine_args", "vllm_config = engine_args.create_engine_config(usage_context=usage_context)"),
        ("vllm/engine/arg_utils.py:1381", "create_engine_config", "model_config = self.create_model_config()"),
        ("vllm/engine/arg_utils.py:1235", "create_model_config", "return ModelConfig("),
        ("pydantic/_internal/_dataclasses.py:121", "__init__", "s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)"),
    ),
    "engine": (
        *_API_TOP,
        *_API_BUILD,
        ("vllm/entrypoints/openai/api_server.py:137", "build_async_engine_client_from_engine_args", "async_llm = AsyncLLM.from_vllm_config("),
        ("vllm/v1/engine/async_llm.py:222", "from_vllm_config", "return cls("),
        ("vllm/v1/engine/async_llm.py:148", "__init__", "self.engine_core = EngineCoreClient.make_async_mp_client("),
        ("vllm/v1/engine/core_client.py:124", "make_async_mp_client", "return AsyncMPClient(*client_args)"),
        ("vllm/v1/engine/core_client.py:659", "__init__", "super().__init__("),
        ("vllm/v1/engine/core_client.py:490", "__init__", "with launch_core_engines(vllm_config, executor_class, log_stats) as ("),
        ("lib/contextlib.py:144", "__exit__", "next(self.gen)"),
        ("vllm/v1/engine/utils.py:925", "launch_core_engines", "wait_for_engine_startup("),
        ("vllm/v1/engine/utils.py:984", "wait_for_engine_startup", "raise RuntimeError("),
    ),
}  # fmt: skip
PROCESS: tuple[Frame, ...] = (
    ("lib/multiprocessing/process.py:314", "_bootstrap", "self.run()"),
    ("lib/multiprocessing/process.py:108", "run", "self._target(*self._args, **self._kwargs)"),
    ("vllm/v1/engine/core.py:1010", "run_engine_core", "raise e"),
)


def render(frames: tuple[Frame, ...], error: str) -> str:
    """A traceback in CPython's form; statements that call something are underlined as 3.11 and later do."""
    lines = ["Traceback (most recent call last):"]
    for place, function, statement in frames:
        file, _, number = place.rpartition(":")
        lines.append(f'  File "{_path(file)}", line {number}, in {function}')
        lines.append(f"    {statement}")
        start = _underlined(statement)
        if start is not None:
            lines.append("    " + " " * start + "^" * (len(statement) - start))
    return "\n".join([*lines, error])


def _underlined(statement: str) -> int | None:
    """Where CPython would begin to underline: the right side of an assignment; nothing for a whole statement."""
    for head in (" = ", "return await ", "return ", "with "):
        if head in statement and not statement.startswith(("self.start_layer", "for ")):
            return statement.index(head) + len(head)
    return None


def _path(file: str) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if file.startswith("lib/"):
        return os.path.join(sys.base_prefix, "lib", version, file[4:])
    if file.startswith("bin/"):
        return os.path.join(sys.prefix, file)
    return os.path.join(sys.prefix, "lib", version, "site-packages", file)
