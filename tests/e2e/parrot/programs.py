"""Programs for Parrot's own front end, and the way to run one: `python programs.py URL NAME`.

Run with Parrot's package on the path. The last line of the output is the program's result as JSON.
"""

# mypy: ignore-errors

import json
import sys
from typing import Any

from parrot import P

GREEDY = P.SamplingConfig(temperature=0.0, max_gen_length=6)
LATENCY = P.PerformanceCriteria.LATENCY
THROUGHPUT = P.PerformanceCriteria.THROUGHPUT


@P.semantic_function(try_register=False)
def first(text: P.Input, limit: int, summary: P.Output(GREEDY)):
    """The text: {{text}}. Its summary in {{limit}} words: {{summary}}"""


@P.semantic_function(formatter=P.allowing_newline, try_register=False)
def refine(text: P.Input, before: P.Input, summary: P.Output(GREEDY)):
    """The summary so far: {{before}}
    More text: {{text}}
    A better summary:
    {{summary}}
    """


@P.semantic_function(conversation_template=P.vicuna_template, try_register=False)
def joke(
    topic: P.Input,
    joke: P.Output(GREEDY),
    why: P.Output(
        P.SamplingConfig(
            temperature=0.0,
            top_p=0.9,
            max_gen_length=5,
            ignore_tokenizer_eos=True,
            stop_token_ids=[2],
            stop_str="###",
            presence_penalty=0.5,
            frequency_penalty=0.25,
        )
    ),
    unused: P.Input,
):
    """A joke about {{topic}}: {{joke}}.
    Why it is funny: {{why}}. What {{unused}} thinks of it."""


def chain() -> Any:
    """Two calls, the second of which reads the output of the first, and the same once more."""
    one = first("the sea is blue", 5)
    two = refine("and so is the sky", one)
    three = refine(before=two, text="but grass is green")
    return [three.get(LATENCY), one.get(), two.get(THROUGHPUT)]


def map_reduce() -> Any:
    """Three calls side by side, whose outputs the client joins for a fourth."""
    parts = [first(text, 3) for text in ("cats", "dogs", "mice")]
    summary = first("\n".join(part.get() for part in parts), 9)
    return [*(part.content for part in parts), summary.get(P.PerformanceCriteria.TTFT)]


def variables() -> Any:
    """Variables of the client: one that is set when it is made, one after it is used."""
    style = P.variable("style", "old sayings")
    topic = P.variable(name="topic")
    summary = refine(topic, style)
    topic.set("the moon")
    return [summary.get(P.PerformanceCriteria.TPOT)]


def outputs() -> Any:
    """Two outputs with every parameter, and an input after the last one, whose text is cut off."""
    told, why = joke("a bird", unused="the cat")
    return [told.get(), why.get()]


async def asynchronous() -> Any:
    """Calls and gets by the asynchronous half of the client."""
    one = await first.ainvoke("the sun is hot", 4)
    two = await refine.ainvoke(text="the moon is cold", before=one)
    return [await two.aget(LATENCY), await one.aget(THROUGHPUT)]


def eager() -> Any:
    """A function that is made for this run, and whose calls begin at once."""
    parameters = [P.Parameter("a", P.ParamType.INPUT_LOC), P.Parameter("b", P.ParamType.OUTPUT_LOC)]
    parameters[1].sampling_config = GREEDY
    options = {"output_criteria": "latency", "model_type": "text", "fuse_fill": True}
    made = vm.define_function(None, "Once {{a}} said: {{b}}", parameters, **options)
    return [made("a fox").get()]


def refused() -> Any:
    """What the server refuses, as the client raises it."""

    @P.native_function()
    def upper(text: P.Input, done: P.Output):
        done.set(text.upper())

    def unknown() -> None:
        vm.get_semantic_variable_handler("var-of-nobody", LATENCY)

    def too_hot() -> None:
        sampling = P.SamplingConfig(temperature=-1.0)
        parameter = P.Parameter("b", P.ParamType.OUTPUT_LOC, sampling)
        vm.define_function("hot", "Say {{b}}", [parameter])()

    def again() -> None:
        P.variable("twice", "one").set("two")

    return [_error(fails) for fails in (lambda: upper("a"), unknown, too_hot, again)]


def _error(fails: Any) -> str:
    try:
        fails()
    except RuntimeError as error:
        return str(error)
    return ""


PROGRAMS = [chain, map_reduce, variables, outputs, asynchronous, eager, refused]

if __name__ == "__main__":
    results = []
    program = next(each for each in PROGRAMS if each.__name__ == sys.argv[2])

    def main() -> None:
        results.extend(program())

    async def asynchronous_main() -> None:
        results.extend(await program())

    vm = P.VirtualMachine(core_http_addr=sys.argv[1], mode="release")
    vm.run(asynchronous_main if program is asynchronous else main)
    print(json.dumps(results))
