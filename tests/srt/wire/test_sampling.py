"""A field of `CommonSampling` is a parameter of every API; errors on wrong values name it."""

import inspect
import math
from typing import Any

import msgspec
import pytest

import lang as sgl
from lang.backends.runtime import params_of
from lang.backends.sampling import PLAIN
from srt.client.request_fields import checked_request
from srt.gateway.wire.native import NativeSampling
from srt.gateway.wire.openai import ChatRequest, CompletionRequest
from srt.llm import SamplingParams as VllmParams
from srt.wire.errors import RequestError
from srt.wire.filled_params import NEUTRAL
from srt.wire.messages import FrontMessage, GenerateReq, decoder, encode
from srt.wire.sampling import CommonSampling, SamplingParams, rules_of

VOCAB = 100
# For every field that has a rule, values that break it.
WRONG: dict[str, list[Any]] = {
    "temperature": [-1.0, 101.0, math.nan, math.inf],
    "top_p": [0.0, 1.5, math.nan],
    "top_k": [0, -2, 2**31],
    "min_p": [-0.5, 1.5, math.nan],
    "top_n_sigma": [-1.5, 101.0, math.nan],
    "frequency_penalty": [-2.5, 2.5, math.nan],
    "presence_penalty": [-2.5, 2.5, math.nan],
    "repetition_penalty": [0.0, 2.5, math.nan],
    "logit_bias": [{5: 1e5}, {5: math.nan}, dict.fromkeys(range(5000), 0.0)],
    "allowed_token_ids": [[]],
    "bad_words": [["a"] * 257, [""], ["a" * 257]],
    "seed": [-1],
    "stop_token_ids": [[1] * 257],
    "n": [0, 129],
    "max_new_tokens": [-1],
    "min_new_tokens": [-1],
    "stop": [["a"] * 33, [""], ["a" * 1025]],
    "stop_regex": [["a"] * 33, [""], ["a" * 257]],
    "constraint_after": ["a" * 1025],
    "constraint_opener": ["a" * 65],
}
# For every common field, a value that is not its default.
OTHER: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "top_n_sigma": 1.5,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {5: 1.5},
    "allowed_token_ids": [5, 6],
    "bad_words": ["no"],
    "seed": 5,
    "stop_token_ids": [5],
    "ignore_eos": True,
    "skip_special_tokens": False,
    "jump_forward": "off",
    "token_healing": True,
    "speculative": "off",
    "token_origins": True,
    "return_prefix": True,
    "close": False,
}


def test_every_rule_and_every_common_field_is_tried() -> None:
    assert set(WRONG) == {name for name, _ in rules_of(SamplingParams)}
    assert set(OTHER) == set(CommonSampling.__struct_fields__)


def test_the_defaults_keep_the_rules() -> None:
    SamplingParams().check(VOCAB)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in WRONG.items() for v in values])
def test_a_wrong_value_arrives_and_is_refused_by_name(name: str, value: Any) -> None:
    """It must be decodable: a part drops other messages, and their sender would wait for ever."""
    sent = GenerateReq("r", 1, sampling=SamplingParams(**{name: value}), text="a")
    arrived: GenerateReq = decoder(FrontMessage).decode(encode(sent))
    assert repr(arrived) == repr(sent)
    with pytest.raises(RequestError, match=f"^{name} ") as caught:
        arrived.sampling.check(VOCAB)
    assert caught.value.info.param == name


@pytest.mark.parametrize("name", OTHER)
def test_a_common_field_is_known_to_every_api(name: str) -> None:
    value = OTHER[name]
    want = SamplingParams(**{name: value})
    asked = {name: msgspec.json.decode(msgspec.json.encode(value))}  # in JSON, keys are texts
    assert msgspec.convert(asked, NativeSampling, str_keys=True).to_params() == want
    for kind, prompt in ((CompletionRequest, {"prompt": "a"}), (ChatRequest, {"messages": []})):
        body: Any = msgspec.convert(prompt | asked, kind, str_keys=True)
        assert body.to_params(None, "", 128) == want
    assert checked_request({"text": "a", "sampling": asked}).sampling == want
    given = VllmParams(**{name: value}, max_tokens=128).request()
    assert checked_request({"text": "a", **given}).sampling == want
    gen: Any = sgl.gen("x", **asked)
    sampling = PLAIN.merged(gen.given)
    assert checked_request({"text": "a", "sampling": params_of(sampling)}).sampling == want


@pytest.mark.parametrize(("name", "value"), msgspec.structs.asdict(NEUTRAL).items())
def test_a_neutral_value_is_not_unset(name: str, value: Any) -> None:
    given, null = {name: value}, dict.fromkeys([name])
    assert SamplingParams(**given) != SamplingParams() == SamplingParams(**null)  # type: ignore[arg-type]
    assert params_of(PLAIN.merged(given)) == given
    assert VllmParams(**given).request()["sampling"][name] == value
    assert name not in VllmParams().request()["sampling"]
    assert VllmParams(top_k=0).request()["sampling"]["top_k"] == -1


def test_gen_refuses_what_nobody_knows() -> None:
    with pytest.raises(TypeError, match="temprature"):
        sgl.gen("x", temprature=0.5)
    assert "min_p" in inspect.signature(sgl.gen).parameters
