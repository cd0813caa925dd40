"""The flags of `vllm serve`, as data: name, kind, default, and the releases that have it.

`since` is the first release with the flag, `until` the first without it; both as (major, minor). Windows: DOMAIN E.3 and
VLLM-LAB ("Flags that went"); where neither speaks, the flag counts as present throughout. Choices of the parsers are open.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """One flag. `kind`: bool (with a --no- twin), switch, int, float, str, list, json, human (65536 or 64k), auto (human,
    -1 or auto), append. `choices` may name a set of `parser`: `kv` stands for the KV cache types."""

    name: str
    group: str
    kind: str = "str"
    default: object = None
    short: str = ""
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (99, 0)
    choices: tuple[str, ...] = ()
    help: str = ""

    def exists_in(self, release: tuple[int, int, int]) -> bool:
        return self.since <= release[:2] < self.until


F = Flag
V17, V18, V20, V24, V28, V33 = (0, 17), (0, 18), (0, 20), (0, 24), (0, 28), (0, 33)
MOE_BACKENDS = (
    "auto", "cutlass", "deep_gemm", "flashinfer_cutedsl", "flashinfer_cutlass", "flashinfer_trtllm", "marlin", "triton",
)  # fmt: skip
LINEAR_BACKENDS = ("auto", "cutlass", "deep_gemm", "flashinfer_cudnn", "flashinfer_cutlass", "marlin", "torch")
MM_MODES = ("data", "weights")
LOADS = ("eager", "lazy", "prefetch", "torchao")

# fmt: off
FLAGS: tuple[Flag, ...] = (
    # Frontend
    F("--host", "Frontend", help="Host name."),
    F("--port", "Frontend", "int", 8000, help="Port number."),
    F("--uds", "Frontend", help="Unix domain socket path."),
    F("--uvicorn-log-level", "Frontend", default="info",
      choices=("critical", "debug", "error", "info", "trace", "warning"), help="Log level for uvicorn."),
    F("--disable-uvicorn-access-log", "Frontend", "bool", False, help="Disable uvicorn access log."),
    F("--allow-credentials", "Frontend", "bool", False, help="Allow credentials."),
    F("--allowed-origins", "Frontend", "json", ["*"], help="Allowed origins."),
    F("--allowed-methods", "Frontend", "json", ["*"], help="Allowed methods."),
    F("--allowed-headers", "Frontend", "json", ["*"], help="Allowed headers."),
    F("--api-key", "Frontend", "list", help="If provided, the server will require one of these keys in the header."),
    F("--lora-modules", "Frontend", "list", help="LoRA modules configurations."),
    F("--chat-template", "Frontend", help="The file path to the chat template."),
    F("--chat-template-content-format", "Frontend", default="auto", choices=("auto", "openai", "string"),
      help="The format to render message content within a chat template."),
    F("--response-role", "Frontend", default="assistant", help="The role name to return."),
    F("--ssl-keyfile", "Frontend", help="The file path to the SSL key file."),
    F("--ssl-certfile", "Frontend", help="The file path to the SSL cert file."),
    F("--ssl-ca-certs", "Frontend", help="The CA certificates file."),
    F("--root-path", "Frontend", help="FastAPI root_path."),
    F("--middleware", "Frontend", "append", [], help="Additional ASGI middleware to apply to the app."),
    F("--return-tokens-as-token-ids", "Frontend", "bool", False, help="Show tokens as token ids."),
    F("--disable-frontend-multiprocessing", "Frontend", "bool", False, until=V28, help="Run in one process."),
    F("--enable-request-id-headers", "Frontend", "bool", False, help="Add X-Request-Id to responses."),
    F("--enable-auto-tool-choice", "Frontend", "bool", False, help="Enable auto tool choice for supported models."),
    F("--exclude-tools-when-tool-choice-none", "Frontend", "bool", False, help="Leave tools out of the prompt."),
    F("--tool-call-parser", "Frontend", help="Select the tool call parser depending on the model that you're using."),
    F("--tool-parser-plugin", "Frontend", default="", help="Special the tool parser plugin."),
    F("--tool-server", "Frontend", help="Comma-separated list of host:port pairs."),
    F("--max-log-len", "Frontend", "int", help="Max number of prompt characters being printed in log."),
    F("--disable-fastapi-docs", "Frontend", "bool", False, help="Disable FastAPI's OpenAPI schema."),
    F("--enable-prompt-tokens-details", "Frontend", "bool", False, help="Enable prompt_tokens_details in usage."),
    F("--enable-server-load-tracking", "Frontend", "bool", False, help="Enable tracking server_load_metrics."),
    F("--enable-force-include-usage", "Frontend", "bool", False, help="Include usage on every request."),
    F("--enable-log-outputs", "Frontend", "bool", False, help="Log model outputs."),
    F("--enable-log-requests", "Frontend", "bool", False, help="Enable logging requests."),
    F("--disable-log-requests", "Frontend", "bool", False, until=V17, help="[DEPRECATED] Disable logging requests."),
    F("--log-error-stack", "Frontend", "bool", False, help="Log the stack trace of error responses."),
    F("--api-server-count", "Frontend", "int", short="-asc", help="How many API server processes to run."),
    F("--headless", "Frontend", "switch", False, help="Run in headless mode."),
    F("--config", "Frontend", help="Read CLI options from a config file."),
    F("--disable-log-stats", "Frontend", "switch", False, help="Disable logging statistics."),
    F("--aggregate-engine-logging", "Frontend", "switch", False, help="Log aggregate rather than per-engine statistics."),
    F("--shutdown-timeout", "Frontend", "int", 0, since=V18, help="Seconds to wait for running requests on shutdown."),
    # ModelConfig
    F("--model", "ModelConfig", default="Qwen/Qwen3-0.6B", help="Name or path of the Hugging Face model to use."),
    F("--task", "ModelConfig", until=(0, 14), help="[DEPRECATED] The task to use the model for."),
    F("--runner", "ModelConfig", default="auto", choices=("auto", "draft", "generate", "pooling"), help="Model runner."),
    F("--convert", "ModelConfig", default="auto", choices=("auto", "classify", "embed", "none"), help="Adapters."),
    F("--tokenizer", "ModelConfig", help="Name or path of the Hugging Face tokenizer to use."),
    F("--tokenizer-mode", "ModelConfig", default="auto", help="Tokenizer mode."),
    F("--trust-remote-code", "ModelConfig", "bool", False, help="Trust remote code when downloading the model."),
    F("--dtype", "ModelConfig", default="auto", help="Data type for model weights and activations.",
      choices=("auto", "bfloat16", "float", "float16", "float32", "half")),
    F("--seed", "ModelConfig", "int", 0, help="Random seed for reproducibility."),
    F("--hf-config-path", "ModelConfig", help="Name or path of the Hugging Face config to use."),
    F("--allowed-local-media-path", "ModelConfig", default="", help="Folder of local media."),
    F("--revision", "ModelConfig", help="The specific model version to use."),
    F("--code-revision", "ModelConfig", help="The specific revision to use for the model code."),
    F("--tokenizer-revision", "ModelConfig", help="The specific revision to use for the tokenizer."),
    F("--max-model-len", "ModelConfig", "auto", help="Model context length (prompt and output)."),
    F("--quantization", "ModelConfig", short="-q", help="Method used to quantize the weights."),
    F("--enforce-eager", "ModelConfig", "bool", False, help="Whether to always use eager-mode PyTorch."),
    F("--max-logprobs", "ModelConfig", "int", 20, help="Maximum number of log probabilities to return."),
    F("--disable-sliding-window", "ModelConfig", "bool", False, help="Disable sliding window."),
    F("--disable-cascade-attn", "ModelConfig", "bool", False, help="Disable cascade attention for V1."),
    F("--skip-tokenizer-init", "ModelConfig", "bool", False, help="Skip initialization of tokenizer."),
    F("--enable-prompt-embeds", "ModelConfig", "bool", False, help="Enable passing text embeddings as inputs."),
    F("--served-model-name", "ModelConfig", "list", help="The model name(s) used in the API."),
    F("--config-format", "ModelConfig", default="auto", help="The format of the model config to load."),
    F("--hf-token", "ModelConfig", help="The token to use as HTTP bearer authorization for remote files."),
    F("--hf-overrides", "ModelConfig", "json", {}, help="Arguments to be forwarded to the Hugging Face config."),
    F("--generation-config", "ModelConfig", default="auto", help="The folder path to the generation config."),
    F("--override-generation-config", "ModelConfig", "json", {}, help="Overrides of the generation config."),
    F("--enable-sleep-mode", "ModelConfig", "bool", False, help="Enable sleep mode for the engine."),
    F("--model-impl", "ModelConfig", default="auto", help="Which implementation of the model to use."),
    F("--logits-processors", "ModelConfig", "list", help="Logits processors."),
    # LoadConfig
    F("--load-format", "LoadConfig", default="auto", help="The format of the model weights to load."),
    F("--download-dir", "LoadConfig", help="Directory to download and load the weights."),
    F("--safetensors-load-strategy", "LoadConfig", choices=LOADS, help="Loading strategy for safetensors weights."),
    F("--model-loader-extra-config", "LoadConfig", "json", {}, help="Extra config for model loader."),
    F("--ignore-patterns", "LoadConfig", "list", ["original/**/*"], help="The list of patterns to ignore."),
    F("--use-tqdm-on-load", "LoadConfig", "bool", True, help="Whether to enable tqdm for weights."),
    F("--pt-load-map-location", "LoadConfig", default="cpu", help="Map location for PyTorch checkpoints."),
    # AttentionConfig, StructuredOutputsConfig
    F("--attention-backend", "AttentionConfig", help="Attention backend to use."),
    F("--reasoning-parser", "StructuredOutputsConfig", default="", help="Select the reasoning parser."),
    F("--reasoning-parser-plugin", "StructuredOutputsConfig", default="", help="Path to a reasoning parser plugin."),
    F("--guided-decoding-backend", "StructuredOutputsConfig", until=(0, 14), help="[DEPRECATED]"),
    F("--structured-outputs-config", "StructuredOutputsConfig", "json", help="Structured outputs configuration."),
    # ParallelConfig
    F("--distributed-executor-backend", "ParallelConfig", help="Backend to use for distributed model workers."),
    F("--pipeline-parallel-size", "ParallelConfig", "int", 1, "-pp", help="Number of pipeline parallel groups."),
    F("--master-addr", "ParallelConfig", default="127.0.0.1", help="Distributed master address."),
    F("--master-port", "ParallelConfig", "int", 29501, help="Distributed master port."),
    F("--nnodes", "ParallelConfig", "int", 1, "-n", help="Number of nodes."),
    F("--node-rank", "ParallelConfig", "int", 0, "-r", help="Distributed node rank."),
    F("--distributed-timeout-seconds", "ParallelConfig", "int", since=V18, help="Timeout of the process groups."),
    F("--tensor-parallel-size", "ParallelConfig", "int", 1, "-tp", help="Number of tensor parallel groups."),
    F("--decode-context-parallel-size", "ParallelConfig", "int", 1, "-dcp", help="Number of decode context groups."),
    F("--dcp-comm-backend", "ParallelConfig", since=V18, choices=("a2a", "ag_rs"), help="DCP communication."),
    F("--prefill-context-parallel-size", "ParallelConfig", "int", 1, "-pcp", help="Number of prefill context groups."),
    F("--data-parallel-size", "ParallelConfig", "int", 1, "-dp", help="Number of data parallel groups."),
    F("--data-parallel-rank", "ParallelConfig", "int", short="-dpn", help="Data parallel rank of this instance."),
    F("--data-parallel-size-local", "ParallelConfig", "int", short="-dpl", help="Data parallel replicas on this node."),
    F("--data-parallel-address", "ParallelConfig", short="-dpa", help="Address of the data parallel head node."),
    F("--data-parallel-rpc-port", "ParallelConfig", "int", short="-dpp", help="Port for data parallel RPC."),
    F("--data-parallel-backend", "ParallelConfig", default="mp", short="-dpb", help="Backend for data parallel."),
    F("--enable-expert-parallel", "ParallelConfig", "bool", False, "-ep", help="Use expert parallelism for MoE layers."),
    F("--all2all-backend", "ParallelConfig", default="allgather_reducescatter", help="All2All backend for MoE."),
    F("--enable-dbo", "ParallelConfig", "bool", False, help="Enable dual batch overlap."),
    F("--enable-eplb", "ParallelConfig", "bool", False, help="Enable expert parallelism load balancing."),
    F("--eplb-config", "ParallelConfig", "json", help="Expert parallelism configuration."),
    F("--max-parallel-loading-workers", "ParallelConfig", "int", help="Maximum number of parallel loading workers."),
    F("--disable-custom-all-reduce", "ParallelConfig", "bool", False, help="Disable the custom all-reduce kernel."),
    F("--worker-cls", "ParallelConfig", default="auto", help="The full name of the worker class to use."),
    F("--worker-extension-cls", "ParallelConfig", default="", help="Worker extension class."),
    # CacheConfig
    F("--block-size", "CacheConfig", "int", help="Size of a contiguous cache block in number of tokens."),
    F("--gpu-memory-utilization", "CacheConfig", "float", 0.9, help="The fraction of GPU memory to be used."),
    F("--kv-cache-memory-bytes", "CacheConfig", "human", help="Size of KV Cache per GPU in bytes."),
    F("--swap-space", "CacheConfig", "float", 4, until=V18, help="Size of the CPU swap space per GPU (in GiB)."),
    F("--kv-cache-dtype", "CacheConfig", default="auto", choices=("kv",), help="Data type for kv cache storage."),
    F("--kv-cache-dtype-skip-layers", "CacheConfig", "list", since=V20, help="Layers that keep the model's type."),
    F("--num-gpu-blocks-override", "CacheConfig", "int", help="Number of GPU blocks to use."),
    F("--enable-prefix-caching", "CacheConfig", "bool", help="Whether to enable prefix caching."),
    F("--prefix-caching-hash-algo", "CacheConfig", default="sha256", help="Hash algorithm for prefix caching."),
    F("--cpu-offload-gb", "CacheConfig", "float", 0, help="The space in GiB to offload to CPU, per GPU."),
    F("--calculate-kv-scales", "CacheConfig", "bool", False, until=(0, 29), help="[DEPRECATED]"),
    F("--mamba-cache-dtype", "CacheConfig", default="auto", help="Data type of the Mamba cache."),
    # MultiModalConfig
    F("--language-model-only", "MultiModalConfig", "bool", False, since=V17, help="Leave out the multimodal towers."),
    F("--limit-mm-per-prompt", "MultiModalConfig", "json", {}, help="Maximum number of items per modality."),
    F("--media-io-kwargs", "MultiModalConfig", "json", {}, help="Args passed to process media inputs."),
    F("--mm-processor-kwargs", "MultiModalConfig", "json", help="Arguments for the model's processor."),
    F("--mm-processor-cache-gb", "MultiModalConfig", "float", 4, help="Size (in GiB) of the processor cache."),
    F("--mm-encoder-tp-mode", "MultiModalConfig", default="weights", choices=MM_MODES, help="How to split the encoder."),
    F("--skip-mm-profiling", "MultiModalConfig", "bool", False, help="Skip multimodal memory profiling."),
    # LoRAConfig
    F("--enable-lora", "LoRAConfig", "bool", help="If True, enable handling of LoRA adapters."),
    F("--max-loras", "LoRAConfig", "int", 1, help="Max number of LoRAs in a single batch."),
    F("--max-lora-rank", "LoRAConfig", "int", 16, help="Max LoRA rank."),
    # ObservabilityConfig
    F("--show-hidden-metrics-for-version", "ObservabilityConfig", help="Enable deprecated metrics."),
    F("--otlp-traces-endpoint", "ObservabilityConfig", help="Target URL of OpenTelemetry traces."),
    F("--collect-detailed-traces", "ObservabilityConfig", "list", help="Modules to trace."),
    F("--logging-config", "ObservabilityConfig", "json", since=V33, help="Logging configuration."),
    # SchedulerConfig
    F("--max-num-batched-tokens", "SchedulerConfig", "human", help="Maximum number of tokens of one iteration."),
    F("--max-num-seqs", "SchedulerConfig", "int", help="Maximum number of sequences of one iteration."),
    F("--max-num-partial-prefills", "SchedulerConfig", "int", 1, until=V28, help="Concurrent partial prefills."),
    F("--max-long-partial-prefills", "SchedulerConfig", "int", 1, until=V28, help="Concurrent long prefills."),
    F("--long-prefill-token-threshold", "SchedulerConfig", "int", 0, help="Tokens that make a prompt long."),
    F("--scheduling-policy", "SchedulerConfig", default="fcfs", choices=("fcfs", "priority"), help="Policy."),
    F("--enable-chunked-prefill", "SchedulerConfig", "bool", help="If True, prefill requests can be chunked."),
    F("--disable-chunked-mm-input", "SchedulerConfig", "bool", False, help="Do not chunk multimodal items."),
    F("--scheduler-cls", "SchedulerConfig", help="The scheduler class to use."),
    F("--disable-hybrid-kv-cache-manager", "SchedulerConfig", "bool", help="Disable the hybrid KV cache manager."),
    F("--async-scheduling", "SchedulerConfig", "bool", help="Perform async scheduling."),
    F("--stream-interval", "SchedulerConfig", "int", 1, help="Interval (or buffer size) for streaming in tokens."),
    # CompilationConfig, KernelConfig
    F("--cuda-graph-sizes", "CompilationConfig", "list", until=(0, 14), help="[DEPRECATED]"),
    F("--cudagraph-capture-sizes", "CompilationConfig", "list", help="Sizes to capture cudagraph."),
    F("--max-cudagraph-capture-size", "CompilationConfig", "int", help="The maximum cudagraph capture size."),
    F("--enable-flashinfer-autotune", "KernelConfig", "bool", help="Run FlashInfer autotuning during warm-up."),
    F("--moe-backend", "KernelConfig", default="auto", since=V17, choices=MOE_BACKENDS, help="MoE kernels."),
    F("--linear-backend", "KernelConfig", default="auto", since=V28, choices=LINEAR_BACKENDS, help="Linear kernels."),
    # VllmConfig
    F("--speculative-config", "VllmConfig", "json", short="-sc", help="Speculative decoding configuration."),
    F("--kv-transfer-config", "VllmConfig", "json", help="The configurations for distributed KV cache transfer."),
    F("--kv-events-config", "VllmConfig", "json", help="The configurations for event publishing."),
    F("--ec-transfer-config", "VllmConfig", "json", help="The configurations for encoder cache transfer."),
    F("--compilation-config", "VllmConfig", "json", {}, "-cc", help="torch.compile and cudagraph capture."),
    F("--attention-config", "VllmConfig", "json", short="-ac", help="Attention configuration."),
    F("--kernel-config", "VllmConfig", "json", since=V17, help="Kernel configuration."),
    F("--additional-config", "VllmConfig", "json", {}, help="Additional config for specified platform."),
    F("--profiler-config", "VllmConfig", "json", help="Profiling configuration."),
    F("--optimization-level", "VllmConfig", "int", 2, help="The optimization level."),
    F("--performance-mode", "VllmConfig", default="balanced", since=V17,
      choices=("balanced", "interactivity", "throughput"), help="What to optimise for."),
    F("--fail-on-environ-validation", "VllmConfig", "bool", False, since=V18, help="Fail on unknown variables."),
)
# fmt: on
