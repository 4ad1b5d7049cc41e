"""The language: programs over language models, written in Python. `import lang as sgl`.

A function decorated with `function` gets a state `s`, extends it by text, `gen` and `select`,
forks it, and reads what the model wrote. Programs written for SGLang run as they are.
"""

from typing import TYPE_CHECKING, Any

from lang.agents.agent import agent
from lang.agents.tools import describe
from lang.backends.config import backend_of, global_config, set_default_backend
from lang.chat_template import (
    ChatTemplate,
    register_chat_template,
    register_chat_template_matching_function,
)
from lang.decoders.beam import beam
from lang.decoders.search import Node, Search
from lang.decoders.votes import Vote, best_of, decided, vote
from lang.errors import (
    AnswerError,
    CancelledError,
    FilterError,
    LangError,
    ProgramError,
    RefusalError,
    TraceError,
    UnsupportedError,
)
from lang.functions.function import ProgramStream, SglFunction, function
from lang.generation.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from lang.generation.primitives import (
    distribution,
    gen,
    gen_int,
    gen_string,
    image,
    score,
    select,
    separate_reasoning,
    video,
)
from lang.graph.graph import Graph
from lang.graph.recorder import arg
from lang.logs.address import Address
from lang.logs.journal import LogWarning
from lang.logs.log import Log
from lang.state.certificates import Certificate
from lang.state.control import repeat, unordered, var, when
from lang.state.forks import ProgramStateGroup
from lang.state.refs import Condition, Ref
from lang.state.roles import (
    assistant,
    assistant_begin,
    assistant_end,
    system,
    system_begin,
    system_end,
    tool,
    tool_begin,
    tool_end,
    user,
    user_begin,
    user_end,
)
from lang.state.state import ProgramState
from lang.state.unread import concat, first
from lang.state.unread import formatted as format
from lang.values import grammar as g

if TYPE_CHECKING:
    from lang.backends.command_line import command_line
    from lang.backends.openai import OpenAI
    from lang.backends.providers.anthropic import Anthropic
    from lang.backends.providers.gemini import Gemini, VertexAI
    from lang.backends.providers.litellm import LiteLLM
    from lang.backends.runtime import Runtime, RuntimeEndpoint
    from lang.remote.semantic import Input, Output, semantic_function
    from lang.remote.session import ProgramVar, Session, negated, session
    from srt.offline.engine import Engine

__all__ = [
    "Address",
    "AnswerError",
    "Anthropic",
    "CancelledError",
    "Certificate",
    "ChatTemplate",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Condition",
    "Engine",
    "FilterError",
    "Gemini",
    "Graph",
    "Input",
    "LangError",
    "LiteLLM",
    "Log",
    "LogWarning",
    "Node",
    "OpenAI",
    "Output",
    "ProgramError",
    "ProgramState",
    "ProgramStateGroup",
    "ProgramStream",
    "ProgramVar",
    "Ref",
    "RefusalError",
    "Runtime",
    "RuntimeEndpoint",
    "Search",
    "Session",
    "SglFunction",
    "TraceError",
    "UnsupportedError",
    "VertexAI",
    "Vote",
    "agent",
    "arg",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "beam",
    "best_of",
    "command_line",
    "concat",
    "decided",
    "describe",
    "distribution",
    "first",
    "flush_cache",
    "format",
    "function",
    "g",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "negated",
    "register_chat_template",
    "register_chat_template_matching_function",
    "repeat",
    "score",
    "select",
    "semantic_function",
    "separate_reasoning",
    "session",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tool_begin",
    "tool_end",
    "unconditional_likelihood_normalized",
    "unordered",
    "user",
    "user_begin",
    "user_end",
    "var",
    "video",
    "vote",
    "when",
]

_LATER = {  # what needs more than the language alone
    "Engine": "srt.offline.engine",
    "Input": "lang.remote.semantic",
    "Output": "lang.remote.semantic",
    "ProgramVar": "lang.remote.session",
    "Session": "lang.remote.session",
    "command_line": "lang.backends.command_line",
    "negated": "lang.remote.session",
    "semantic_function": "lang.remote.semantic",
    "session": "lang.remote.session",
    "Anthropic": "lang.backends.providers.anthropic",
    "Gemini": "lang.backends.providers.gemini",
    "LiteLLM": "lang.backends.providers.litellm",
    "OpenAI": "lang.backends.openai",
    "VertexAI": "lang.backends.providers.gemini",
    "Runtime": "lang.backends.runtime",
    "RuntimeEndpoint": "lang.backends.runtime",
}


def flush_cache(backend: Any = None) -> None:
    """Empty the prefix cache of the back end's server. RequestError while requests run."""
    from lang import loop

    loop.call(backend_of(backend).flush_cache())


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """The counters and gauges of the back end's server."""
    info: dict[str, Any] = getattr(backend_of(backend), "get_server_info")()  # noqa: B009
    return info


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'lang' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
