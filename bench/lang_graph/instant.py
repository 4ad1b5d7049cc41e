"""A back end that answers at once, and what a node of a program costs with it."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import lang as sgl
from lang.backends.base import BackendDefaults, Capabilities, Completion, Prompt, Scored, Scores
from lang.backends.sampling import Sampling
from lang.chat_template import ChatTemplate, chat_template_named

STEPS = 200
RUNS = 15


class InstantBackend(BackendDefaults):
    """Answers after one turn of the loop. `calls` have come so far."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(score=True, constraints=True)
        self.calls = 0

    async def chat_template(self) -> ChatTemplate:
        return chat_template_named("chatml")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.calls += 1
        await asyncio.sleep(0)
        return Completion("four", "stop", None, 3, 0, 1)

    async def score(
        self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        self.calls += 1
        await asyncio.sleep(0)
        alone = (-1.0,) if unconditional else ()
        scored = [Scored(text, (0,), (-float(len(text)),), alone) for text in continuations]
        return Scores(tuple(scored), 3, 0)


@sgl.function
def texts(s: Any, question: str) -> None:
    """Texts and one gen."""
    for i in range(STEPS - 1):
        s += f"{i}: {question} "
    s += sgl.gen("answer", max_tokens=1)


@sgl.function
def chain(s: Any, question: str) -> None:
    """Gens one after the other, with a text before each."""
    for i in range(STEPS // 2):
        s += f"{i}{question}"
        s += sgl.gen(f"a{i}", max_tokens=1)


@sgl.function
def reads(s: Any, question: str) -> None:
    """A chain whose prompts have the variable before."""
    s += question + sgl.gen("a0", max_tokens=1)
    for i in range(1, STEPS // 3):
        s += " so "
        s += s.var(f"a{i - 1}")
        s += sgl.gen(f"a{i}", max_tokens=1)


@sgl.function
def fan(s: Any, question: str) -> None:
    """Forks side by side: each one's question is another one."""
    forks = s.fork(STEPS // 2)
    for i, fork in enumerate(forks):
        fork += f"{i}{question}"
        fork += sgl.gen("a", max_tokens=1)
    forks.join()


def cost_rows(runs: int = RUNS) -> list[list[str]]:
    """CPU time of this process for a node, interpreted and compiled, and of recording it once; in
    the last column all of a compiled run, with its texts, divided by its calls."""
    rows = []
    for function in (texts, chain, reads, fan):
        compiled = function.compile()
        count, calls = len(compiled.graph.nodes), sum(compiled.report().calls.values())
        took = [_us(function.run, runs), _us(compiled.run, runs)]
        recording = _us(lambda question, backend, temperature, f=function: f.compile(), 3)
        each = [f"{value / count:.1f}" for value in (*took, recording)]
        per_call = f"{took[1] / calls:.1f}"
        rows.append([function.__name__, str(count), str(calls), *each, per_call])
    return rows


def _us(run: Callable[..., Any], runs: int) -> float:
    """The median of some runs; the first one warms up."""
    times = []
    for _ in range(runs + 1):
        began = time.process_time()
        state = run(question="Q", backend=InstantBackend(), temperature=0)
        if isinstance(state, sgl.ProgramState):
            state.sync()
        times.append(1e6 * (time.process_time() - began))
    return statistics.median(times[1:])
