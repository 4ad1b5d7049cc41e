"""`srt.LLM`: offline batches with vLLM's names, on the real model."""

from typing import Any

import msgspec
import pytest

import srt
from srt.llm import LLM, CompletionOutput, RequestOutput, SamplingParams, StructuredOutputsParams
from srt.wire.answer_meta import NO_META, facts

PROMPTS = ["The capital of France is", "One, two, three,", "Once upon a time"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


def test_outputs_are_in_order_and_complete(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.prompt for output in outputs] == PROMPTS
    assert [output.request_id for output in outputs] == ["0", "1", "2"]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        (completion,) = output.outputs
        alone = llm.engine.generate(prompt, {"temperature": 0.0, "max_new_tokens": 6})
        assert (completion.text, completion.token_ids) == (alone.text, alone.output_ids)
        assert len(output.prompt_token_ids) == alone.prompt_tokens
        assert (completion.finish_reason, completion.stop_reason) == ("length", None)
        assert completion.logprobs is None and completion.cumulative_logprob is None
        assert output.finished
    assert "3/3 prompts" in capfd.readouterr().err
    assert llm.generate([], GREEDY) == []
    llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)
    assert capfd.readouterr().err == ""


def test_almost_no_sigmas_are_greedy(llm: LLM) -> None:
    """As on the APIs of `test_sampling_parameter`."""
    sampling = SamplingParams(temperature=5.0, top_n_sigma=1e-6, max_tokens=6)
    drawn, greedy = llm.generate(PROMPTS, sampling), llm.generate(PROMPTS, GREEDY)
    assert [o.outputs[0].text for o in drawn] == [o.outputs[0].text for o in greedy]


def test_prompts_of_every_kind(llm: LLM) -> None:
    text = PROMPTS[0]
    ids = llm.generate(text, GREEDY)[0].prompt_token_ids
    kinds: list[Any] = [text, {"prompt": text}, {"prompt_token_ids": ids}, ids]
    outputs = llm.generate(kinds, GREEDY)
    assert len({output.outputs[0].text for output in outputs}) == 1
    assert [output.prompt for output in outputs] == [text, text, None, None]
    assert generated(llm.generate(ids, GREEDY)[0]) == generated(outputs[0])


def test_parameters_of_each(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 3, 5)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 3, 5]
    with pytest.raises(ValueError, match="2 sampling_params for 3 prompts"):
        llm.generate(PROMPTS, params[:2])
    with pytest.raises(TypeError, match=r"srt\.llm\.SamplingParams"):
        llm.generate(PROMPTS, srt.SamplingParams())  # type: ignore[arg-type]


def generated(output: RequestOutput) -> list[CompletionOutput]:
    """Without what guessing did for it, which may differ."""
    return [msgspec.structs.replace(each, **facts(NO_META)) for each in output.outputs]


def test_samples_with_a_seed(llm: LLM) -> None:
    params = SamplingParams(n=4, seed=7, max_tokens=8)
    first, again = (llm.generate(PROMPTS[2], params, use_tqdm=False)[0] for _ in range(2))
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert generated(first) == generated(again)
    assert len({c.text for c in first.outputs}) > 1


def test_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate(PROMPTS[0], params, use_tqdm=False)
    (completion,) = output.outputs
    assert completion.logprobs is not None and output.prompt_logprobs is not None
    assert len(completion.logprobs) == len(completion.token_ids) == 4
    for token, row in zip(completion.token_ids, completion.logprobs, strict=True):
        assert row[token].rank == 1 and len(row) == 3  # greedy: the chosen is the likeliest
        values = [entry.logprob for entry in row.values()]
        assert values == sorted(values, reverse=True)
    rows = zip(completion.token_ids, completion.logprobs, strict=True)
    chosen = [row[token] for token, row in rows]
    assert "".join(entry.decoded_token for entry in chosen) == completion.text
    total = sum(entry.logprob for entry in chosen)
    assert completion.cumulative_logprob == pytest.approx(total)
    assert output.prompt_logprobs[0] is None
    prompt = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    assert all(row is not None and token in row and len(row) in (2, 3) for token, row in prompt)


def test_stops_and_constraints(llm: LLM) -> None:
    count = SamplingParams(temperature=0.0, max_tokens=40, stop=",")
    (output,) = llm.generate("One, two, three,", count, use_tqdm=False)
    completion = output.outputs[0]
    assert completion.stop_reason == "," and completion.finish_reason == "stop"
    assert completion.text == " four"
    constraint = StructuredOutputsParams(choice=["yes", "no"])
    params = SamplingParams(structured_outputs=constraint, max_tokens=8)
    (output,) = llm.generate("Is water wet?", params, use_tqdm=False)
    assert output.outputs[0].text in ("yes", "no")
    assert output.outputs[0].stop_reason is None
    fields = StructuredOutputsParams(json="{}", disable_additional_properties=False).fields()
    assert fields == {"json_schema": "{}", "disable_additional_properties": False}
    with pytest.raises(ValueError, match="exactly one"):
        StructuredOutputsParams(choice=["a"], regex="b").fields()


def test_chats(llm: LLM) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("Say hello.", "Count to three.")]
    outputs = llm.chat(chats, GREEDY, use_tqdm=False)
    assert len(outputs) == 2
    assert generated(llm.chat(chats[0], GREEDY, use_tqdm=False)[0]) == generated(outputs[0])
    begun = [*chats[0], {"role": "assistant", "content": "Good day, my"}]
    (output,) = llm.chat(begun, GREEDY, use_tqdm=False, continue_final_message=True)
    assert len(output.prompt_token_ids) > len(outputs[0].prompt_token_ids)


def test_a_refused_prompt_ends_the_batch(llm: LLM) -> None:
    with pytest.raises(srt.RequestError) as caught:
        llm.generate(PROMPTS, [GREEDY, SamplingParams(top_p=0.0), GREEDY], use_tqdm=False)
    assert caught.value.info.param == "top_p"
    assert llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0].outputs[0].text


@pytest.mark.full
def test_a_batch_of_more_than_the_server_takes_at_once() -> None:
    with LLM(max_total_tokens=4096, max_queued_requests=8) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=2, n=2)
        prompts = [f"The number {i} and the number" for i in range(12)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
    assert len(outputs) == 12
    assert all(len(output.outputs) == 2 for output in outputs)
