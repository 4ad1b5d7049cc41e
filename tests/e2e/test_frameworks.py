"""Unmodified frameworks that call OpenAI's routes, one program with each. Those that are not
installed are skipped. No test depends on what the model says beyond what it is forced to say.
"""

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import openai
import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

pydantic = pytest.importorskip("pydantic")
ASK = "Which city is the capital of France?"
SHORT: dict[str, Any] = {"temperature": 0.0, "max_tokens": 8}


class City(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    """A city."""

    name: Literal["Paris", "Rome"]
    size: Literal["small", "large"]


@pytest.fixture
def url(server: Server) -> str:
    return server.url + "/v1"


@pytest.fixture
def oai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="any")


@pytest.fixture
def said(oai: openai.OpenAI) -> str:
    """The greedy answer to ASK, from the plain client."""
    messages: list[Any] = [{"role": "user", "content": ASK}]
    answer = oai.chat.completions.create(model="smollm2", messages=messages, **SHORT)
    return answer.choices[0].message.content or ""


def test_langchain(url: str, said: str) -> None:
    """Answers, streams, calls of tools and structured output."""
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(base_url=url, api_key="any", model="smollm2", **SHORT)
    assert model.invoke(ASK).content == said
    assert "".join(chunk.content for chunk in model.stream(ASK)) == said
    roomy = langchain.ChatOpenAI(base_url=url, api_key="any", model="smollm2", temperature=0.0)
    (call,) = roomy.bind_tools([City], tool_choice="City").invoke(ASK).tool_calls
    assert call["name"] == "City" and City(**call["args"])
    assert isinstance(roomy.with_structured_output(City, method="json_schema").invoke(ASK), City)


def test_llama_index(url: str, said: str) -> None:
    llama_index = pytest.importorskip("llama_index.llms.openai_like")
    core = pytest.importorskip("llama_index.core.llms")
    common = {"model": "smollm2", "api_base": url, "api_key": "any", "context_window": 2048}
    model = llama_index.OpenAILike(**common, **SHORT, is_chat_model=True)
    messages = [core.ChatMessage(role="user", content=ASK)]
    assert model.chat(messages).message.content == said
    assert "".join(chunk.delta or "" for chunk in model.stream_chat(messages)) == said
    plain = llama_index.OpenAILike(**common, **SHORT, is_chat_model=False)
    assert plain.complete("The capital of France is").text.startswith(" Paris")


def test_instructor(oai: openai.OpenAI) -> None:
    instructor = pytest.importorskip("instructor")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(oai, mode=mode)
        city = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": ASK}],
            response_model=City,
            temperature=0.0,
            max_retries=0,
        )
        assert isinstance(city, City)


def test_pydantic_ai(url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.openai")
    providers = pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=url, api_key="any")
    for model in (models.OpenAIChatModel, models.OpenAIResponsesModel):
        agent = pydantic_ai.Agent(model("smollm2", provider=provider), output_type=City)
        # A small model would not stop calling.
        settings = {"temperature": 0.0, "max_tokens": 200, "parallel_tool_calls": False}
        result = asyncio.run(agent.run(ASK, model_settings=settings))
        assert isinstance(result.output, City)


def test_outlines(oai: openai.OpenAI) -> None:
    outlines = pytest.importorskip("outlines")
    model = outlines.from_openai(oai, "smollm2")
    assert City.model_validate_json(model(ASK, City, temperature=0.0))


def test_guidance(url: str, said: str) -> None:
    """It leaves a temperature of 0 out of its requests, and so samples with temperature 1."""
    guidance = pytest.importorskip("guidance")
    model = guidance.models.OpenAI("smollm2", echo=False, base_url=url, api_key="any")
    with guidance.user():
        model += ASK
    with guidance.assistant():
        model += guidance.gen("answer", max_tokens=8, temperature=1e-6)
    assert model["answer"] == said


def test_dspy(url: str, said: str) -> None:
    dspy = pytest.importorskip("dspy")
    asked = {"api_base": url, "api_key": "any", "cache": False, "temperature": 0.0}
    model = dspy.LM("openai/smollm2", max_tokens=8, **asked)
    assert model(ASK) == [said]
    schema = {"name": "city", "schema": City.model_json_schema()}
    form = {"type": "json_schema", "json_schema": schema}
    roomy = dspy.LM("openai/smollm2", max_tokens=100, **asked)
    (text,) = roomy(ASK, response_format=form)
    assert City.model_validate_json(text)


@pytest.mark.parametrize("adapter", ["ChatAdapter", "JSONAdapter"])
def test_adapters_of_dspy(url: str, adapter: str) -> None:
    """Programs with typed fields. If the model does not write fields as ChatAdapter wants them, the
    adapter falls back to JSON, which matches if litellm knows that schemas are enforced."""
    dspy = pytest.importorskip("dspy")
    litellm = pytest.importorskip("litellm")
    facts = {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}
    litellm.register_model({"openai/smollm2": facts})
    asked = {"api_base": url, "api_key": "any", "cache": False, "temperature": 0.0}
    model = dspy.LM("openai/smollm2", max_tokens=200, **asked)
    fields: dict[str, Any] = {"question": (str, dspy.InputField())}
    fields |= {"city": (Literal["Paris", "Rome"], dspy.OutputField())}
    with dspy.context(lm=model, adapter=getattr(dspy, adapter)()):
        answer = dspy.Predict(dspy.Signature(fields))(question=ASK)
    assert answer.city in ("Paris", "Rome")


def test_litellm(url: str, said: str) -> None:
    litellm = pytest.importorskip("litellm")
    asked = {"model": "openai/smollm2", "api_base": url, "api_key": "any", **SHORT}
    messages = [{"role": "user", "content": ASK}]
    answer = litellm.completion(messages=messages, **asked)
    assert answer.choices[0].message.content == said
    chunks = litellm.completion(messages=messages, stream=True, **asked)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said


TASKS: dict[str, dict[str, Any]] = {
    "choice.yaml": {
        "task": "choice",
        "output_type": "multiple_choice",
        "doc_to_choice": ["Paris", "Rome"],
        "doc_to_target": "{{label}}",
        "metric_list": [{"metric": "acc"}],
    },
    "words.yaml": {
        "task": "words",
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["."], "max_gen_toks": 8, "temperature": 0.0},
        "metric_list": [{"metric": "exact_match"}],
    },
    "rolling.yaml": {
        "task": "rolling",
        "output_type": "loglikelihood_rolling",
        "doc_to_target": "{{text}} {{answer}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}
ROWS = [
    {"text": "The capital of France is", "answer": "Paris", "label": 0},
    {"text": "The capital of Italy is", "answer": "Rome", "label": 1},
]


def test_lm_eval(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities of choices and texts, and generation, on tasks made here."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lm_eval = pytest.importorskip("lm_eval")
    managers = pytest.importorskip("lm_eval.tasks")
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    for name, task in TASKS.items():
        common = {**source, "test_split": "test", "doc_to_text": "{{text}}"}
        if name == "rolling.yaml":
            common["doc_to_text"] = ""
        (tmp_path / name).write_text(json.dumps(common | task))  # JSON is YAML
    evaluated = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "base_url": url + "/completions",
            "model": "smollm2",
            "tokenizer_backend": "remote",
            "max_length": 2048,
            "num_concurrent": 2,
        },
        tasks=["choice", "words", "rolling"],
        task_manager=managers.TaskManager(include_path=str(tmp_path), include_defaults=False),
    )
    assert evaluated["results"]["choice"]["acc,none"] == 1.0
    assert evaluated["results"]["rolling"]["word_perplexity,none"] > 1.0
    assert evaluated["samples"]["words"][0]["resps"][0][0].strip().startswith("Paris")
