"""What the options of other servers are here: those of vLLM, SGLang, llama.cpp and Ollama, by the
names that they have there, without dashes in front. No option of ours is among them.
"""

# What is called otherwise here.
CALLED = {
    **dict.fromkeys(
        ("model-path", "m", "hf", "hfr", "hf-repo", "mu", "model-url", "docker-repo", "dr"), "model"
    ),
    "tokenizer-path": "tokenizer",
    **dict.fromkeys(
        (
            *("ctx-size", "c", "context-length", "context-len", "num-ctx", "max-context-length"),
            *("max-seq-len", "max-sequence-length", "kv-unified-per-slot"),
        ),
        "max-model-len",
    ),
    **dict.fromkeys(("served-name", "alias", "a"), "served-model-name"),
    "chat-template-file": "chat-template",
    "generation-config": "sampling-defaults",
    **dict.fromkeys(
        ("cache-type-k", "ctk", "cache-type-v", "ctv", "kv-cache-type"), "kv-cache-dtype"
    ),
    **dict.fromkeys(("quantize", "q", "torchao-config"), "quantization"),
    **dict.fromkeys(
        ("max-num-seqs", "parallel", "np", "num-parallel", "n-parallel", "max-batch-size"),
        "max-running-requests",
    ),
    **dict.fromkeys(
        (
            *("max-num-batched-tokens", "max-prefill-tokens"),
            *("batch-size", "b", "ubatch-size", "ub"),
        ),
        "chunked-prefill-size",
    ),
    **dict.fromkeys(("max-queue", "queue-size", "max-concurrency"), "max-queued-requests"),
    **dict.fromkeys(("gpu-memory-utilization", "mem-fraction"), "mem-fraction-static"),
    **dict.fromkeys(("data-parallel-size", "dp-size", "data-parallel"), "dp"),
    "load-balance-method": "router-policy",
    **dict.fromkeys(
        ("t", "n-threads", "cpu-threads", "num-threads", "threads-batch", "tb"), "threads"
    ),
    **dict.fromkeys(("enforce-eager", "no-cuda-graph"), "disable-cuda-graph"),
    **dict.fromkeys(
        (
            *("no-enable-prefix-caching", "no-cache-prompt", "no-prefix-cache"),
            "disable-prefix-cache",
        ),
        "disable-radix-cache",
    ),
    "dev": "device",
    "disable-regex-jump-forward": "disable-jump-forward",
    "scheduling-policy": "schedule-policy",
    "no-async-scheduling": "disable-overlap-schedule",
    **dict.fromkeys(("seed", "s"), "random-seed"),
    "reasoning-format": "reasoning-parser",
    **dict.fromkeys(("speculative-config", "speculative-algorithm", "spec-type"), "speculative"),
    **dict.fromkeys(
        (
            *("num-speculative-tokens", "speculative-num-draft-tokens", "draft", "draft-n"),
            *("draft-max", "spec-draft-n-max"),
        ),
        "speculative-max-tokens",
    ),
    **dict.fromkeys(("guided-decoding-backend", "structured-outputs-config"), "grammar-backend"),
    **dict.fromkeys(("limit-mm-per-prompt", "limit-mm-data-per-request"), "limit-media"),
    "allowed-media-domains": "media-domain",
    "mm-processor-cache-gb": "media-cache-mb",
    "attn-backend": "attention-backend",
    **dict.fromkeys(
        ("allowed-origins", "allow-origins", "cors-origins", "origins"), "cors-allow-origins"
    ),
    "forwarded-allow-ips": "trusted-proxies",
    **dict.fromkeys(("no-webui", "disable-ui"), "no-ui"),
    "watchdog-timeout": "step-timeout",
    "shutdown-timeout": "drain-timeout",
    **dict.fromkeys(
        (
            *("log-level-http", "uvicorn-log-level", "log-verbosity", "verbosity", "lv"),
            *("verbose", "log-verbose", "v", "debug", "log-disable"),
        ),
        "log-level",
    ),
    "kv-events-config": "kv-events",
    "enable-deterministic-inference": "deterministic",
}

# What is given in other units there.
IN_UNITS = {"mm-processor-cache-gb": ", in MB"}

# What the commands that ask a server call otherwise: options of other servers' own.
OF_CLIENTS = {
    **dict.fromkeys(("base-url", "endpoint", "server", "host"), "url"),
    **dict.fromkeys(("temp", "t"), "temperature"),
    **dict.fromkeys(
        ("max-new-tokens", "max-completion-tokens", "n-predict", "predict", "n", "num-predict"),
        "max-tokens",
    ),
    **dict.fromkeys(("system-prompt", "sys", "system-prompt-file"), "system"),
    **dict.fromkeys(("j", "jf", "json-schema-file", "format"), "json-schema"),
    **dict.fromkeys(("random-input-len", "random-input"), "input-len"),
    **dict.fromkeys(("random-output-len", "random-output"), "output-len"),
    **dict.fromkeys(("dataset-path", "dataset-name"), "dataset"),
    **dict.fromkeys(("num-warmups", "warmup-requests"), "warmup"),
    **dict.fromkeys(("result-filename", "output-file"), "json"),
}

# What turns on what is always on, and the option that turns it off, if there is one.
ALWAYS_ON = {
    **dict.fromkeys(("enable-prefix-caching", "cache-prompt"), "--disable-radix-cache"),
    **dict.fromkeys(("async-scheduling", "enable-overlap-schedule"), "--disable-overlap-schedule"),
    **dict.fromkeys(("webui", "ui"), "--no-ui"),
    "enable-reasoning": "--reasoning-parser none",
    **dict.fromkeys(
        (
            *("enable-auto-tool-choice", "tool-call-parser", "jinja", "enable-metrics", "metrics"),
            *("enable-chunked-prefill", "enable-mixed-chunk", "cont-batching", "cb", "kv-unified"),
            *("kvu", "flash-attn", "fa", "flash-attention", "fit", "warmup", "repack"),
            *("enable-prompt-tokens-details", "enable-cache-report"),
            "enable-tokenizer-info-endpoint",
        ),
        "",
    ),
    "enable-multimodal": "--limit-media 0",
}

# What a model's name says, and how.
IN_NAME = {
    "revision": "org/name@REVISION",
    **dict.fromkeys(("hf-file", "hff"), "hf://org/name/FILE.gguf"),
    **dict.fromkeys(("quant", "gguf-file"), "org/name:Q4_K_M"),
}

_BY_FIELDS = {
    **dict.fromkeys(
        ("chat-template-kwargs", "default-chat-template-kwargs"), "chat_template_kwargs"
    ),
    **dict.fromkeys(("n-predict", "predict", "n", "num-predict"), "max_tokens"),
    **dict.fromkeys(("temp", "temperature"), "temperature"),
    "top-p": "top_p",
    "top-k": "top_k",
    "min-p": "min_p",
    "presence-penalty": "presence_penalty",
    "frequency-penalty": "frequency_penalty",
    **dict.fromkeys(("repeat-penalty", "repetition-penalty"), "repetition_penalty"),
    **dict.fromkeys(("grammar", "grammar-file"), "ebnf"),
    **dict.fromkeys(("logit-bias", "l"), "logit_bias"),
    "ignore-eos": "ignore_eos",
    **dict.fromkeys(("reverse-prompt", "r"), "stop"),
    **dict.fromkeys(("special", "sp"), "skip_special_tokens"),
    "enable-force-include-usage": "stream_options",
    **dict.fromkeys(("json-schema", "j", "json-schema-file", "jf", "format"), "response_format"),
    **dict.fromkeys(
        ("reasoning", "rea", "reasoning-budget", "reasoning-effort", "think", "hidethinking"),
        "reasoning_effort",
    ),
}
_DEVICES = "a model runs on the CPU, or all of it on the device that --device names"
_ONE_DEVICE = "a model runs on one device; --dp starts replicas of it"
# What there is not, and what may be done instead or why.
NONE = {
    **{name: f"each request says it by its field {field}" for name, field in _BY_FIELDS.items()},
    "override-generation-config": "each request says how it is sampled",
    **dict.fromkeys(
        (
            *("samplers", "sampler-seq", "sampling-seq", "typical", "typical-p", "repeat-last-n"),
            *("mirostat", "mirostat-lr", "mirostat-ent", "xtc-probability", "xtc-threshold"),
            *("dry-multiplier", "dry-base", "dry-allowed-length", "dry-penalty-last-n"),
            *("dry-sequence-breaker", "dynatemp-range", "dynatemp-exp", "top-nsigma"),
            *("top-n-sigma", "adaptive-target", "adaptive-decay"),
        ),
        "requests are sampled by temperature, top_p, top_k, min_p and penalties",
    ),
    **dict.fromkeys(
        (
            *("lora-modules", "enable-lora", "lora-paths", "lora", "lora-scaled", "max-loras"),
            *("max-lora-rank", "max-loras-per-batch", "max-loaded-loras", "lora-backend"),
            *("lora-target-modules", "qlora-adapter-name-or-path", "enable-prompt-adapter"),
            *("control-vector", "control-vector-scaled"),
        ),
        "adapters are not supported: merge them into the weights",
    ),
    **dict.fromkeys(
        (
            *("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-key-file"),
            *("ssl-cert-file", "ssl-ciphers", "enable-ssl-refresh"),
        ),
        "a proxy in front of the server speaks TLS; see --trusted-proxies",
    ),
    **dict.fromkeys(
        ("root-path", "fastapi-root-path", "api-prefix"),
        "a proxy in front of the server takes the prefix off",
    ),
    "uds": "HTTP is served over TCP",
    **dict.fromkeys(
        ("trust-remote-code", "code-revision"),
        "no code of a model is run",
    ),
    "skip-tokenizer-init": "every model has a tokenizer; see --tokenizer",
    "tokenizer-revision": "--tokenizer takes a directory or a file of this machine",
    **dict.fromkeys(
        ("download-dir", "models", "cache-dir"),
        "the variable HF_HOME says where models are kept",
    ),
    **dict.fromkeys(("hf-token", "hft"), "the variable HF_TOKEN has the hub's token"),
    "offline": "the variable HF_HUB_OFFLINE=1 forbids downloads",
    **dict.fromkeys(("cache-list", "cl"), "`srt models` lists those of this machine"),
    **dict.fromkeys(
        ("load-format", "model-loader-extra-config", "config-format", "tokenizer-mode"),
        "the format is that of the files",
    ),
    **dict.fromkeys(
        ("mlock", "mmap", "no-mmap", "dio", "load-mode", "lm"), "weights are held in memory"
    ),
    **dict.fromkeys(
        (
            *("hf-overrides", "override-kv", "json-model-override-args", "rope-scaling"),
            *("rope-theta", "rope-scale", "rope-freq-base", "rope-freq-scale", "yarn-orig-ctx"),
            *("yarn-ext-factor", "yarn-attn-factor"),
        ),
        "a model is computed as its files say",
    ),
    **dict.fromkeys(
        (
            *("n-gpu-layers", "ngl", "gpu-layers", "cpu-offload-gb", "swap-space", "cpu-moe"),
            *("cmoe", "n-cpu-moe", "ncmoe", "override-tensor", "ot", "kv-offload"),
            *("no-kv-offload", "gpu-overhead", "sched-spread", "kvo", "nkvo", "op-offload"),
            *("no-op-offload", "fit-target", "fitt", "fit-ctx", "fitc", "list-devices"),
        ),
        _DEVICES,
    ),
    **dict.fromkeys(
        (
            *("pipeline-parallel-size", "pp", "pp-size", "expert-parallel-size", "ep-size", "ep"),
            *("enable-expert-parallel", "nnodes", "node-rank", "dist-init-addr", "main-gpu", "mg"),
            *("split-mode", "sm", "tensor-split", "ts", "rpc", "distributed-executor-backend"),
            *("disaggregation-mode", "kv-transfer-config", "enable-dp-attention", "base-gpu-id"),
            *("disable-custom-all-reduce", "enable-p2p-check", "dist-timeout", "nccl-port"),
            *("moe-a2a-backend", "all2all-backend", "data-parallel-address", "headless"),
        ),
        _ONE_DEVICE,
    ),
    **dict.fromkeys(
        (
            *("speculative-model", "speculative-draft-model-path", "speculative-draft-model"),
            *("speculative-eagle-topk", "model-draft", "md", "spec-draft-model", "hfd"),
            *("hf-repo-draft", "draft-min", "draft-p-min", "spec-draft-n-min", "threads-draft"),
            *("gpu-layers-draft", "ngld", "lookup-cache-static", "lookup-cache-dynamic"),
        ),
        "tokens are guessed without a second model; see --speculative",
    ),
    **dict.fromkeys(
        (
            *("embedding", "embeddings", "is-embedding", "pooling", "rerank", "reranking", "task"),
            *("runner", "convert", "override-pooler-config"),
        ),
        "models generate text, and nothing else",
    ),
    **dict.fromkeys(
        (
            *("keep-alive", "keepalive", "max-loaded-models", "models-max", "enable-sleep-mode"),
            *("models-dir", "models-preset", "models-autoload", "enable-memory-saver"),
            "sleep-idle-seconds",
        ),
        "a server has one model, which stays loaded",
    ),
    **dict.fromkeys(
        (
            *("disable-log-requests", "enable-log-requests", "log-requests", "disable-log-stats"),
            *("max-log-len", "enable-log-outputs", "disable-uvicorn-access-log"),
            *("uvicorn-access-log-exclude-prefixes", "log-requests-level", "decode-log-interval"),
        ),
        "requests are not logged",
    ),
    **dict.fromkeys(
        ("otlp-traces-endpoint", "enable-trace", "collect-detailed-traces"),
        "no traces are sent; /metrics has the times",
    ),
    **dict.fromkeys(
        ("compilation-config", "O", "enable-torch-compile", "torch-compile-max-bs"),
        "models are not compiled",
    ),
    **dict.fromkeys(
        (
            *("cuda-graph-max-bs", "cuda-graph-bs", "cudagraph-capture-sizes"),
            *("max-cudagraph-capture-size", "max-seq-len-to-capture"),
            *("disable-cuda-graph-padding", "enable-cudagraph-gc"),
        ),
        "see --disable-cuda-graph",
    ),
    **dict.fromkeys(
        ("enable-hierarchical-cache", "hicache-ratio", "hicache-size", "enable-lmcache"),
        "KV is cached in the pool alone; see --max-total-tokens",
    ),
    **dict.fromkeys(
        ("cache-ram", "cram", "num-gpu-blocks-override", "kv-cache-memory-bytes"),
        "--max-total-tokens is the size of the pool and of the cache in it",
    ),
    **dict.fromkeys(("block-size", "page-size"), "the pool has no pages: KV is kept by tokens"),
    **dict.fromkeys(
        (
            *("allow-credentials", "allowed-methods", "allowed-headers", "cors-headers"),
            *("cors-methods", "cors-credentials", "no-cors-credentials"),
        ),
        "--cors-allow-origins says which pages may call",
    ),
    **dict.fromkeys(
        ("allowed-local-media-path", "media-path"), "no files of the server's machine are read"
    ),
    **dict.fromkeys(
        (
            *("middleware", "tool-server", "tools", "tool-parser-plugin", "logits-processors"),
            *("reasoning-parser-plugin", "enable-custom-logit-processor", "mcp-servers-config"),
        ),
        "a server runs no code of others",
    ),
    **dict.fromkeys(
        ("mmproj", "mm", "mmproj-url", "mmu", "no-mmproj", "mmproj-auto"),
        "a model that sees is a directory",
    ),
    **dict.fromkeys(
        (
            *("mm-processor-kwargs", "media-io-kwargs", "image-min-tokens", "image-max-tokens"),
            "disable-fast-image-processor",
        ),
        "pictures are processed as the model's files say",
    ),
    **dict.fromkeys(
        (
            *("no-warmup", "skip-server-warmup", "no-jinja", "no-cont-batching", "nocb", "nr"),
            *("no-kv-unified", "no-kvu", "no-repack", "no-enable-chunked-prefill"),
        ),
        "this is always on",
    ),
    "allow-auto-truncate": "a prompt that is too long is refused",
    **dict.fromkeys(
        ("enable-priority-scheduling", "enable-priority-preemption"),
        "requests' priorities always count",
    ),
    **dict.fromkeys(
        (
            *("max-logprobs", "timeout", "to", "threads-http", "api-server-count", "numa", "prio"),
            *("schedule-conservativeness", "cache-reuse", "context-shift", "insecure"),
            *("no-context-shift", "slots", "no-slots", "props", "slot-save-path", "swa-full"),
            *("cpu-mask", "C", "cpu-range", "Cr", "cpu-strict", "poll", "defrag-thold", "keep"),
            *("ui-config", "webui-config", "log-file", "log-prefix", "log-timestamps", "perf"),
            *("log-colors", "reasoning-preserve", "reasoning-budget-message"),
            *("chat-template-content-format", "response-role", "disable-sliding-window"),
            *("num-scheduler-steps", "disable-frontend-multiprocessing", "preemption-mode"),
            *("mamba-cache-dtype", "sampling-backend", "tokenizer-worker-num", "sleep-on-idle"),
        ),
        "",
    ),
}
