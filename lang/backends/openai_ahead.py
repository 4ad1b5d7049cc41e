"""What API speculation and open assistant turns need of the OpenAI routes, by dialect."""

import re
from typing import Any

from lang.backends.base import Prompt
from lang.backends.openai_request import Dialect
from lang.backends.sampling import Sampling

_REASONING = re.compile(r"(.*/)?(o\d|gpt-[5-9](?!.*chat))")


def refusal_of(model_name: str) -> str | None:
    """Why `num_api_spec_tokens` is of no use for a model; None if it is of use."""
    if _REASONING.match(model_name) is None:
        return None
    return f"{model_name} reasons before it answers, and what is left early is paid for too"


def stream_fields(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The fields of a stream. One with log-probabilities may be left early, as speculation does:
    then the tokens count that were there until then, where a server says so."""
    options = {"include_usage": True}
    if sampling.return_logprob and dialect != "openai":
        options["continuous_usage_stats"] = True
    return {"stream": True, "stream_options": options}


def continued_fields(prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
    """The fields by which a chat's answer continues the open turn."""
    if not prompt.open_text:
        return {}
    # vLLM refuses the combination of both, and begins a turn by default.
    begins = {"add_generation_prompt": False} if dialect == "vllm" else {}
    return {"continue_final_message": True, **begins}
