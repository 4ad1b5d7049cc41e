"""What a name that is no option was probably meant to be."""

import difflib
from collections.abc import Iterable

# What other servers call them: SGLang, vLLM, llama.cpp, Ollama.
_ELSEWHERE = {
    **dict.fromkeys(("model-path", "m", "hf", "hf-repo", "mu", "model-url", "mm"), "model"),
    **dict.fromkeys(("max-num-seqs", "parallel", "np", "max-batch-size"), "max-running-requests"),
    **dict.fromkeys(("ctx-size", "c", "max-model-len", "context-length"), "max-total-tokens"),
    **dict.fromkeys(("gpu-memory-utilization", "mem-fraction"), "mem-fraction-static"),
    **dict.fromkeys(("data-parallel-size", "dp-size"), "dp"),
    **dict.fromkeys(("t", "n-threads", "cpu-threads"), "threads"),
    **dict.fromkeys(("a", "alias", "served-name"), "served-model-name"),
    **dict.fromkeys(("enforce-eager", "no-cuda-graph"), "disable-cuda-graph"),
    "max-num-batched-tokens": "chunked-prefill-size",
    "no-enable-prefix-caching": "disable-radix-cache",
    "seed": "random-seed",
    "ask": "run",
    "pull": "serve",
    "list": "models",
    "ls": "models",
    "start": "serve",
    "check": "doctor",
    "benchmark": "bench",
}


def instead_of(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` with the nearest of the `known` names, or nothing if none is near."""
    by_form, form = {_form(other): other for other in known}, _form(name)
    nearest = difflib.get_close_matches(form, by_form, n=1, cutoff=0.75)
    if (other := _ELSEWHERE.get(form)) in by_form:
        nearest = [other]
    return f"; did you mean {by_form[nearest[0]]}?" if nearest else ""


def _form(name: str) -> str:
    return name.lower().replace("_", "-").lstrip("-").removeprefix("srt-")[:80]
