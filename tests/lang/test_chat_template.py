"""Chat templates by model name, registered ones, and how the runtime's endpoint uses them."""

from typing import Any

import pytest

import lang as sgl
from lang.backends.runtime import RuntimeEndpoint, _request, params_of
from lang.backends.sampling import Sampling
from lang.chat_template import (
    ChatTemplate,
    chat_template_named,
    chat_template_of_model,
    register_chat_template,
    register_chat_template_matching_function,
)
from srt.files.model_files import resolve_model
from srt.files.vocab import load_vocab
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage
from tests.lang.fakes import FakeBackend
from tokenizer_proc.prompt.chat_template import ChatTemplate as ServerTemplate


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "smollm2"),
        ("/models/SmolLM2-135M-Instruct-Q4_K_M.gguf", "smollm2"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2-vl"),
        ("Qwen/Qwen2-VL-2B", "qwen2-vl"),
        ("Qwen/Qwen3-8B", "chatml"),
        ("Qwen/Qwen3-VL-4B-Instruct", "chatml"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-instruct"),
        ("gpt2", "default"),
    ],
)
def test_families(model: str, name: str) -> None:
    assert chat_template_of_model(model).name == name


def test_a_template_of_ones_own() -> None:
    mine = ChatTemplate("mine", {"user": ("[", "]")})
    register_chat_template(mine)
    register_chat_template_matching_function(lambda model: "mine" if model == "my-model" else None)
    assert chat_template_of_model("my-model") == mine
    with pytest.raises(ValueError, match="assistant"):
        mine.prefix("assistant")
    with pytest.raises(ValueError, match="chat_template 'no'"):
        RuntimeEndpoint("http://localhost:1", chat_template="no")


def test_sampling_becomes_the_runtimes_or_is_refused() -> None:
    sampling = Sampling(max_tokens=3, min_tokens=1, stop=("a",), regex="x", seed=4)
    params = params_of(sampling)
    assert (params["max_new_tokens"], params["min_new_tokens"]) == (3, 1)
    assert (params["stop"], params["regex"], params["seed"]) == (["a"], "x", 4)
    biased = params_of(Sampling(logit_bias={"7": 2.0}, stop_regex=("x",), repetition_penalty=1.5))
    assert (biased["logit_bias"], biased["stop_regex"]) == ({7: 2.0}, ["x"])
    assert biased["repetition_penalty"] == 1.5 and "n" not in biased
    with pytest.raises(RequestError, match="logit_bias"):
        params_of(Sampling(logit_bias={"the": 2.0}))
    closes = [
        params.get("close"),
        biased.get("close"),
        params_of(Sampling(close=True)).get("close"),
    ]
    assert closes == [True, None, None]
    assert params_of(Sampling(regex="x", close=False))["close"] is False
    asked = _request(Sampling(return_logprob=True, top_logprobs_num=2))
    assert asked["top_logprobs"] == 2


TOOL_TURNS = {
    "smollm2": ("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
    "qwen2.5": ("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"),
    "llama-3-instruct": ("<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"),
    "default": ("TOOL:", "\n"),
}


@pytest.mark.parametrize("name", TOOL_TURNS)
def test_what_a_tool_returned(name: str) -> None:
    @sgl.function
    def body(s: Any) -> None:
        with s.tool():
            s += "3"
        s += sgl.tool_begin() + "4" + sgl.tool_end()
        s.tool("5")
        s.tool_begin()
        s += "6"
        s.tool_end()
        s += sgl.tool("7") + sgl.tool()

    template = chat_template_named(name)
    state = body.run(backend=FakeBackend(template=name))
    begin, end = TOOL_TURNS[name]
    default = template.default_system
    system = "" if default is None else default.join(template.marks["system"])
    assert state.text() == system + "".join(f"{begin}{i}{end}" for i in range(3, 8)) + begin
    roles = [message["role"] for message in state.messages() if message["role"] != "system"]
    assert roles == ["tool"] * 5


def test_a_result_is_written_as_by_the_server() -> None:
    """Of the embedded model, whose template has no tools."""
    chat = [
        ChatMessage("user", "How much?"),
        ChatMessage("assistant", "Well."),
        ChatMessage("tool", "3", tool_call_id="c"),
        ChatMessage("assistant", "Three."),
    ]

    @sgl.function
    def body(s: Any) -> None:
        for each in chat:
            s += getattr(sgl, each.role)(each.content)

    server = ServerTemplate.from_vocab(load_vocab(resolve_model("smollm2")))
    state = body.run(backend=FakeBackend(template="smollm2"))
    assert state.text() == server.render(chat, False)
