"""`python -m bench.jump_quality`: whether jump-forward changes how good constrained outputs are.

The scheduler core runs with the native executor in this process. Every case (a pattern, a prompt,
a seed) is generated with jump-forward off and on, and the text is scored: the log-probability that
the unconstrained model gives to the text's canonical tokens after the prompt. Printed: the paired
difference on - off per byte with its 95 % interval; how many outputs are cut into other tokens
than the tokenizer's; and for greedy outputs how many texts differ, by what the first difference
follows: a jump that replaced tokens (seam), or one that did not (tail).
"""

import argparse
import math
from collections import Counter

import numpy as np

from bench.constrained import T95, classic_cases
from bench.laboratory import Job, Laboratory, is_whole
from bench.patterns import seeded_patterns
from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.regex import compile_regex
from srt.benchmark.summary import now
from srt.machine import machine
from srt.wire.filled_params import FilledParams

POOL = 16384


def jobs_of(lab: Laboratory, seeds: int, num_patterns: int, temperature: float) -> list[Job]:
    """Every pattern with every seed; `jump_forward` is still to be set."""
    cases = [(case.constraint["regex"], case.prompts) for case in classic_cases(None)]
    cases += [(p, ["A record of our archive:\n"]) for p in seeded_patterns(num_patterns, seed=1)]
    jobs = []
    for pattern, prompts in cases:
        grammar = FsmGrammar.build(compile_regex(pattern), lab.vocabulary)
        for seed in range(seeds):
            prompt = lab.tokenizer.encode(prompts[seed % len(prompts)])
            sampling = FilledParams(max_new_tokens=400, temperature=temperature, seed=seed)
            jobs.append(Job(prompt, grammar, sampling))
    return jobs


def both(lab: Laboratory, jobs: list[Job]) -> tuple[list[Job], list[Job]]:
    """The jobs that both modes finished: with jump-forward off, and with it on."""
    done = []
    for mode in ("off", "canonical"):
        again = [Job(j.prompt, j.grammar, replaced(j.sampling, jump_forward=mode)) for j in jobs]
        lab.generate(again)
        done.append(again)
    pairs = zip(*done, strict=True)
    whole = [(a, b) for a, b in pairs if is_whole(a) and is_whole(b)]
    return [a for a, _ in whole], [b for _, b in whole]


def replaced(sampling: FilledParams, **changes: object) -> FilledParams:
    fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return FilledParams(**{**fields, **changes})


def non_canonical(lab: Laboratory, jobs: list[Job]) -> float:
    """The share of outputs that the tokenizer would have cut into other tokens."""
    different = 0
    for job in jobs:
        ids = [i for i in job.ids if i not in lab.vocab.special_ids]
        different += ids != lab.plain.split(lab.text(job.ids).decode()).ids
    return different / len(jobs)


def differences(lab: Laboratory, off: list[Job], on: list[Job]) -> Counter[str]:
    """Greedy texts, counted by the kind of their first difference."""
    kinds: Counter[str] = Counter()
    for a, b in zip(off, on, strict=True):
        x, y = lab.text(a.ids), lab.text(b.ids)
        if x == y:
            kinds["none"] += 1
            continue
        common = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), 0)
        before = [drop for start, drop in b.jumps if start <= common]
        kinds["seam" if before and before[-1] > 0 else "tail"] += 1
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.jump_quality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--patterns", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    lab = Laboratory(args.model)
    print(f"{now()}  {machine()}")
    off, on = both(lab, jobs_of(lab, args.seeds, args.patterns, args.temperature))
    scored = [lab.scores([(j.prompt, lab.text(j.ids)) for j in jobs]) for jobs in (off, on)]
    paired = np.array(scored[1]) - np.array(scored[0])
    half = T95[-1] * paired.std(ddof=1) / math.sqrt(len(paired))
    print(f"{len(paired)} pairs at temperature {args.temperature}")
    print(f"log-probability per byte: off {np.mean(scored[0]):.4f}, on {np.mean(scored[1]):.4f}")
    print(
        f"paired difference on - off: {paired.mean():+.4f} "
        f"[{paired.mean() - half:+.4f}, {paired.mean() + half:+.4f}]"
    )
    print(f"cut otherwise: off {non_canonical(lab, off):.3f}, on {non_canonical(lab, on):.3f}")
    greedy = both(lab, jobs_of(lab, 1, args.patterns, 0.0))
    kinds = differences(lab, *greedy)
    print(f"greedy texts: {len(greedy[0])}; first difference: {dict(kinds)}")


if __name__ == "__main__":
    main()
