"""Each provider's back end, and the format of the server that stands for it."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import lang as sgl
from lang.backends.base import Backend, Prompt, Turn
from lang.backends.sampling import Sampling
from tests.lang.providers.formats import AnthropicFormat, GeminiFormat, OpenAIFormat
from tests.lang.providers.scripted import Fault, Format

CHAT = Prompt(
    "SYSTEM:Be brief.\nUSER:Say hello.\nASSISTANT:",
    messages=(Turn("system", "Be brief."), Turn("user", "Say hello.")),
    open_role="assistant",
)
PLAIN = Sampling(max_tokens=9)
KEY = "sk-secret-0123"
# Of Google's package, about aiohttp and pydantic.
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning")
AT_ONCE = {
    "retry-after": "0",
    "retry-after-ms": "1",
}  # what the servers ask for, so that no test waits


class Provider(NamedTuple):
    """`package` must be installed; `make` makes a back end at an address."""

    name: str
    package: str
    make: Callable[..., Any]
    form: Callable[[], Format]

    def at(self, url: str, **options: Any) -> Any:
        """A back end at an address. Skips the test if the package is not there."""
        if self.package:
            # litellm would fetch its table of models.
            os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            reason = f"the package {self.package} is not installed"
            pytest.importorskip(self.package, reason=reason)
        return self.make(url, **options)


def _anthropic(url: str, model: str = "claude-opus-5", **options: Any) -> Backend:
    return sgl.Anthropic(model, api_key=KEY, base_url=url, **options)


def _gemini(url: str, model: str = "gemini-2.5-flash", **options: Any) -> Backend:
    return sgl.Gemini(model, api_key=KEY, base_url=url, **options)


def _vertex(url: str, model: str = "gemini-2.5-flash", **options: Any) -> Backend:
    return sgl.VertexAI(model, api_key=KEY, base_url=url, **options)


def _openai(url: str, model: str = "gpt-4o", **options: Any) -> Backend:
    return sgl.OpenAI(model, api_key=KEY, base_url=url, **options)


def _litellm(url: str, model: str = "openai/gpt-4o", **options: Any) -> Backend:
    return sgl.LiteLLM(model, api_key=KEY, base_url=url, **options)


ANTHROPIC = Provider("anthropic", "anthropic", _anthropic, AnthropicFormat)
GEMINI = Provider("gemini", "google.genai", _gemini, GeminiFormat)
VERTEX = Provider("vertex", "google.genai", _vertex, GeminiFormat)
OPENAI = Provider("openai", "", _openai, OpenAIFormat)
LITELLM = Provider("litellm", "litellm", _litellm, OpenAIFormat)

# litellm takes seconds to import, and Vertex AI's answers are Gemini's: those in full.
PROVIDERS = [
    pytest.param(each, id=each.name, marks=pytest.mark.full if each in (VERTEX, LITELLM) else ())
    for each in (OPENAI, ANTHROPIC, GEMINI, VERTEX, LITELLM)
]


def fault(status: int, body: Any = None) -> Fault:
    """A fault after which a request may be sent again at once."""
    return Fault(status, body, AT_ONCE)
