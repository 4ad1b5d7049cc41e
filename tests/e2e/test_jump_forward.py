"""Jump-forward through the whole server on the real model, streamed and not, scored and stopped."""

import re
from itertools import pairwise

import pytest

from bench.patterns import CHARACTER, CITY
from srt import AsyncClient, Engine
from srt.client.generation import GenerateOutput
from srt.files.model_files import resolve_model
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import load_vocab

PROMPT = "Harry Potter is a character in a novel. Fill in the information as JSON.\n"


def text_of(output: GenerateOutput) -> str:
    vocab = load_vocab(resolve_model("smollm2"))
    pieces = vocab.pieces(skip_special_tokens=True)
    return b"".join(pieces[i] for i in output.output_ids).decode()


@pytest.mark.parametrize(
    ("pattern", "share"), [pytest.param(CHARACTER, 0.4, marks=pytest.mark.full), (CITY, 0.6)]
)
def test_forward_passes_are_saved(engine: Engine, pattern: str, share: float) -> None:
    """The second pattern forces only half of its tokens: the rest are names and digits."""
    passes = {}
    for mode in ("off", "canonical"):
        sampling = {"regex": pattern, "max_new_tokens": 400, "temperature": 0, "jump_forward": mode}
        output = engine.generate(PROMPT, sampling)
        assert re.fullmatch(pattern, output.text, re.ASCII) and text_of(output) == output.text
        assert output.finish is not None and output.finish.type == "stop"
        assert (output.jump_forward_tokens > 0) == (mode == "canonical")
        assert output.completion_tokens == output.jump_forward_tokens + output.forward_passes
        passes[mode] = output.forward_passes
    assert passes["canonical"] <= share * passes["off"]


@pytest.mark.full
def test_a_streamed_text_only_grows(engine: Engine) -> None:
    sampling = {"regex": CHARACTER, "max_new_tokens": 400, "temperature": 0.8, "seed": 3}
    outputs = list(engine.stream(PROMPT, sampling))
    assert len(outputs) > 5
    assert "".join(output.delta for output in outputs) == outputs[-1].text
    for before, after in pairwise(outputs):
        assert after.text.startswith(before.text)
    assert text_of(outputs[-1]) == outputs[-1].text
    assert outputs[-1].text == engine.generate(PROMPT, sampling).text


async def test_log_probabilities_of_jumps_are_those_of_a_prompt(engine: Engine) -> None:
    """A jump's token has the log-probability that it has in a prompt."""
    prompt = load_tokenizer(resolve_model("smollm2")).encode(PROMPT).tolist()
    sampling = {"regex": CITY, "max_new_tokens": 300, "temperature": 0}
    async with AsyncClient(f"ipc://{engine.directory}") as client:
        output = await client.generate(PROMPT, sampling=sampling, return_logprob=True)
        scored = await client.generate(
            input_ids=prompt + output.output_ids,
            sampling={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=len(prompt),
        )
    assert output.jump_forward_tokens > 0
    assert output.output_logprobs is not None and scored.prompt_logprobs is not None
    values = [value for value, _ in scored.prompt_logprobs]
    assert output.output_logprobs == pytest.approx(values, abs=1e-4)


def test_stop_strings_and_limits_hold_inside_jumps(engine: Engine) -> None:
    sampling = {"regex": CHARACTER, "max_new_tokens": 400, "temperature": 0}
    whole = engine.generate(PROMPT, sampling)
    stopped = engine.generate(PROMPT, {**sampling, "stop": ['"house']})
    assert stopped.text == whole.text[: whole.text.index('"house')]
    assert stopped.finish is not None and stopped.finish.matched == '"house'
    for limit in (1, 5, 9, 20):
        cut = engine.generate(PROMPT, {**sampling, "max_new_tokens": limit})
        assert cut.completion_tokens == len(cut.output_ids) <= limit
        assert whole.text.startswith(cut.text)


@pytest.mark.full
def test_outputs_do_not_depend_on_what_runs_beside_them(engine: Engine) -> None:
    sampling = {"regex": CHARACTER, "max_new_tokens": 400, "temperature": 0.9, "seed": 5}
    alone = engine.generate(PROMPT, sampling).text
    prompts = [PROMPT, "Once upon a time", PROMPT, "One, two,"]
    assert [o.text for o in engine.generate(prompts, sampling)][0::2] == [alone, alone]
