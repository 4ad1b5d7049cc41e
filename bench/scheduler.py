"""`python -m bench.scheduler`: what the scheduler core costs per step, without any model.

A null executor answers at once, so all time is the core's: planning, books, tree, queue. Shapes:
a full batch decoding with a long waiting queue behind it, and the same without sharing (the
cache's overhead when it never hits).
"""

import argparse
import time

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.scheduler import Scheduler, SchedulerConfig
from srt.messages import TokenizedReq, pack_ids
from srt.sampling_params import SamplingParams


def null_result(batch: ForwardBatch) -> StepResult:
    """Token 7 for everyone."""
    samples, logprobs = len(batch.sample_tokens), len(batch.logprob_tokens)
    return StepResult(
        np.full(samples, 7, np.int32),
        np.full(samples, np.nan, np.float32),
        np.zeros(logprobs, np.float32),
    )


def measure(running: int, waiting: int, shared: int, own: int, disable: bool) -> dict[str, float]:
    """Microseconds per decode step and per prefilled prompt token, for reqs of shared+own tokens
    and 64 outputs each."""
    rng = np.random.default_rng(0)
    config = SchedulerConfig(
        max_total_tokens=200_000,
        context_len=8192,
        vocab_size=49152,
        max_running_requests=running,
        disable_radix_cache=disable,
        max_wait_s=1e9,
    )
    core = Scheduler(config)
    prefix = rng.integers(0, 49152, shared)
    for i in range(running + waiting):
        ids = np.concatenate((prefix, rng.integers(0, 49152, own)))
        sampling = SamplingParams(max_new_tokens=64, temperature=0.0)
        core.add(TokenizedReq(b"c", str(i), 0, pack_ids(ids), sampling), 0.0)
    decode_us, prefill_us, steps, prefill_tokens = [], 0.0, 0, 0
    while core.has_work and steps < 400:
        started = time.perf_counter()
        plan = core.prepare(0.0)
        assert plan is not None
        step = core.seal(plan)
        assert step is not None
        core.finalize(step, None)
        core.commit(step, null_result(step.batch))
        core.take_output()
        elapsed_us = 1e6 * (time.perf_counter() - started)
        steps += 1
        if all(row.is_decode for row in step.rows) and len(step.rows) == running:
            decode_us.append(elapsed_us)
        else:
            prefill_us += elapsed_us
            prefill_tokens += step.batch.num_tokens
    return {
        "decode_step_us": float(np.median(decode_us)) if decode_us else float("nan"),
        "prefill_us_per_token": prefill_us / max(1, prefill_tokens),
    }


def main() -> None:
    """Print one line per shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=1000)
    waiting = parser.parse_args().waiting
    print(f"{'shape':<44}{'decode step, us':>16}{'prefill, us/token':>19}")
    for running in (1, 8, 32):
        for shared, own in ((1500, 60), (0, 512)):
            for disable in (False, True):
                figures = measure(running, waiting, shared, own, disable)
                name = f"batch {running}, {waiting} waiting, {shared} shared + {own} own"
                name += ", no cache" if disable else ""
                print(
                    f"{name:<52}{figures['decode_step_us']:>10.0f}"
                    f"{figures['prefill_us_per_token']:>17.2f}"
                )


if __name__ == "__main__":
    main()
