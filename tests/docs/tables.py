"""The tables of the documents that are written from the code, and their places in the text.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. `python -m tests.docs.tables`
rewrites them; `test_tables` fails when one differs from the code.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import msgspec

from lang.backends import features
from srt.benchmark.workloads import WORKLOADS
from srt.gateway.constraint.wire import StructuredOutputs
from srt.gateway.docs import routes as docs
from srt.gateway.errors import _STATUS
from srt.gateway.http.routing import routes_of
from srt.gateway.metrics import (
    CALLER_COUNTERS,
    CALLER_GAUGES,
    COUNTERS,
    DRAFT_COUNTERS,
    GAUGES,
    GatewayMetrics,
    drafts_name,
)
from srt.gateway.routes import HANDLERS
from srt.gateway.wire.anthropic import ContentBlock, MessagesRequest, MessagesTool
from srt.gateway.wire.chat import Message
from srt.gateway.wire.fields import (
    CHAT,
    COMPLETION,
    CONTENT_BLOCK,
    MESSAGES,
    MESSAGES_TOOL,
    NATIVE,
    NATIVE_SAMPLING,
    NO_EXTRAS,
    RESPONSES,
    Kind,
)
from srt.gateway.wire.native import NativeRequest, NativeSampling
from srt.gateway.wire.openai import ChatRequest, CompletionRequest, StreamOptions
from srt.gateway.wire.operations import ABORT_KIND, AbortRequest
from srt.gateway.wire.responses import InputItem, ResponsesRequest
from srt.gateway.wire.score import LABEL_KIND, LabelBody, ScoreBody
from srt.gateway.wire.tokens import TOKENIZE, DetokenizeBody, TokenizeBody
from srt.options.table import GROUPS, Option
from srt.programs.core import Core
from srt.wire import messages, program_messages, ring_messages, ring_state
from srt.wire.answer_meta import _TABLES, AnswerMeta
from srt.wire.messages import DRAFT_SOURCES
from srt.wire.ring_state import RingEvent
from srt.wire.sampling import (
    MAX_SAMPLES,
    MAX_STOP_REGEXES,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    CommonSampling,
    SamplingParams,
)
from tests.docs.fields import describe, foreign
from tests.rooms import ROOMS

ROOT = Path(__file__).parents[2]
PACKAGES_SHOWN = (
    *("srt", "srt.gateway", "srt.client", "tokenizer_proc", "scheduler_proc"),
    *("scheduler_proc.core", "scheduler_proc.process", "scheduler_proc.grammar", "lang"),
)
_PLACE = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<table>.*?)<!-- end -->", re.S)

_MEANINGS = {
    "bad_request": "a field is missing, unknown, of the wrong type or out of range; see `param`",
    "context_length_exceeded": "prompt and `max_new_tokens` do not fit into the context",
    "unauthorized": "the API key is missing or wrong; `WWW-Authenticate`",
    "forbidden": "the operation needs an admin's API key; or, on a server without keys, a "
    "[web page of another origin](security.md#web-pages) may have sent the request",
    "not_found": "no such route",
    "model_not_found": "no model of this name is served: of `/v1/models/NAME`, and with "
    "`--strict-model` of every route",
    "method_not_allowed": "the route does not take this HTTP method",
    "request_timeout": "the body did not arrive in time",
    "conflict": "the operation cannot be done now (`/flush_cache` while requests run), or the "
    "request was aborted while its grammar was compiled",
    "request_too_large": "the body is above the size limit",
    "unsupported_media_type": "the body has a `Content-Encoding` other than `identity`; or a web "
    "page's is not `application/json`, on a server without API keys",
    "overloaded": "a request would wait for too long, or the bound on requests or prompt tokens in "
    "flight is reached; `Retry-After`",
    "rate_limited": "a key has used up what its [limits](operations.md#keys) allow; `Retry-After`",
    "timed_out": "`timeout_ms` was over before there was a token",
    "not_implemented": "the API that the route is of has it, and this server has not",
    "at_capacity": "of `/v1/messages`: what other routes call `overloaded`; `Retry-After`",
    "internal": "a defect; the body has a `request_id`, the log has the traceback",
    "unavailable": "starting, draining, or a part of the server was lost; `Retry-After`",
    "restarting": "the scheduler is being restarted: the requests that it had go on; `Retry-After`",
}

_SAMPLING_NOTES = {
    "max_new_tokens": "tokens to generate at most; `None`: all the room there is",
    "min_new_tokens": "no end token, stop id or stop string counts before so many tokens",
    "stop": f"up to {MAX_STOP_STRINGS} strings of up to {MAX_STOP_STRING_CHARS} characters; "
    "part of the text with `no_stop_trim` only",
    "reveals_prefix": "with `return_prefix`: also what others may have written there; the gateway "
    "sets it for admins",
    "regex": "the text matches this pattern; this and the next four: one at most",
    "json_schema": "the text is JSON that this schema (text or dict) allows",
    "ebnf": "the text matches this grammar",
    "structural_tag": "parts of the text match (text or dict)",
    "choices": "the text is one of these strings",
    "json_whitespace": "`compact` JSON has no blanks between its tokens, `free` has what it likes",
    "disable_additional_properties": "whether objects that list properties are closed where their "
    "schema does not say so; None: as the server has it",
    "constraint_after": "the text is free up to and including the first occurrence of this",
    "constraint_opener": "with `constraint_after`: a text that does not begin with this matches at "
    "once",
    "n": f"completions of the prompt, which is computed once; up to {MAX_SAMPLES}",
    "stop_regex": f"up to {MAX_STOP_REGEXES} patterns whose first match ends the output",
    "no_stop_trim": "what stopped the output, a string or a match, stays in the text",
}

_SOCKETS: list[tuple[str, Any]] = [
    ("client → tokenizer", messages.FrontMessage),
    ("tokenizer → client", messages.FrontReply),
    ("tokenizer → scheduler", ring_messages.SchedulerMessage),
    ("scheduler → detokenizer", ring_messages.DetokenizerMessage),
    ("client → detokenizer", messages.BackMessage),
    ("detokenizer → client", messages.BackReply),
    ("detokenizer, scheduler → tokenizer", ring_messages.FrontNews),
    ("tokenizer → compiler", ring_messages.CompilerRequest),
    ("compiler → tokenizer", ring_messages.CompilerMessage),
    ("client → programs", program_messages.ProgramsQuestion),
    ("programs → client", program_messages.ProgramsReply),
    ("supervisor → everyone", ring_state.RingEvent),
    ("part → supervisor", ring_state.Heartbeat),
]

PROVIDERS = {
    "OpenAI": features.OPENAI,
    "other hosts": features.COMPATIBLE,
    "Anthropic": features.ANTHROPIC,
    "Anthropic, 2023-06-01": features.ANTHROPIC_2023,
    "Gemini, Vertex AI": features.GEMINI,
}


def options() -> str:
    """Every option of the launcher, in a table for each group."""
    tables = []
    for title, group in GROUPS.items():
        rows = [(f"`{option.flag}`", _default(option), _meaning(option)) for option in group]
        tables.append(f"### {title}\n\n{_table(('option', 'default', 'meaning'), rows)}")
    return "\n".join(tables)


def _default(option: Option) -> str:
    if option.default is False:
        return "off"
    return "" if option.default == "" else f"`{option.default}`"


def _meaning(option: Option) -> str:
    choices = f" (one of {_code_list(option.choices)})" if option.choices else ""
    return option.text + choices


def _code_list(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def routes() -> str:
    """Every route of the gateway, with the first sentence of its handler."""
    rows = []
    for route in (*HANDLERS, *routes_of(docs)):
        methods, paths = ", ".join(sorted(route.methods)), _code_list(sorted(route.paths))
        rows.append((methods, paths.replace("{name}", "NAME"), _first_line(route.fn)))
    return _table(("method", "path", "what it does"), rows)


def fields(struct: type[msgspec.Struct], kind: Kind) -> str:
    """The fields of one kind of request, by class."""
    rows = [(f"`{row.name}`", row.treatment, row.note) for row in describe(struct, kind)]
    return _table(("field", "class", "note"), rows)


def foreign_fields() -> str:
    """Every field of other servers that the OpenAI routes know."""
    rows = [(f"`{name}`", places, what, note) for name, places, what, note in foreign()]
    return _table(("field", "in", "class", "note"), rows)


def errors() -> str:
    """Every error code with its HTTP status."""
    ordered = sorted(_STATUS.items(), key=lambda item: (item[1], item[0]))
    rows = [(str(status), f"`{code}`", _MEANINGS[code]) for code, status in ordered]
    return _table(("status", "code", "meaning"), rows)


def metrics() -> str:
    """Every metric of /metrics."""
    ring = RingEvent(1, True, False, {})
    drafts = [drafts_name(name, source) for name in DRAFT_COUNTERS for source in DRAFT_SOURCES]
    callers = [f"{name}/a" for name in (*CALLER_GAUGES, *CALLER_COUNTERS)]
    stats = dict.fromkeys([*GAUGES, *COUNTERS, *drafts, *callers], 0)
    text = GatewayMetrics().render(stats, ring, Core(1, 1).counts()).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    rows = [
        (f"`{name}`", kinds[name], note)
        for name, note in re.findall(r"^# HELP (\S+) (.*)$", text, re.M)
        if not name.endswith("_created")
    ]
    return _table(("metric", "type", "meaning"), rows)


def sockets() -> str:
    """Every message of the ring, by the socket it travels on."""
    rows = []
    for way, union in _SOCKETS:
        kinds = get_args(union) if isinstance(union, UnionType) else (union,)
        rows += [(way, f"`{kind.__name__}`", _first_line(kind)) for kind in kinds]
    return _table(("way", "message", "what it says"), rows)


def sampling_params() -> str:
    """Every field of SamplingParams with its default."""
    defaults = msgspec.structs.asdict(SamplingParams())
    common = {row.name: row.note for row in describe(CommonSampling, NO_EXTRAS)}
    notes = common | _SAMPLING_NOTES
    rows = [(f"`{n}`", f"`{value}`", notes[n]) for n, value in defaults.items()]
    return _table(("field", "default", "meaning"), rows)


def answer_facts() -> str:
    """The facts of an answer, and the names under which each API shows them."""
    types = {field.name: field.type for field in msgspec.structs.fields(AnswerMeta)}
    notes = {fact: get_args(kind)[1].description for fact, kind in types.items()}
    notes["accept_length"] = _first_line(AnswerMeta.accept_length)
    names = {api: {entry.fact: entry.name for entry in table} for api, table in _TABLES.items()}
    rows = []
    for fact, note in notes.items():
        shown = (f"`{table[fact]}`" if fact in table else "" for table in names.values())
        rows.append((f"`{fact}`", *shown, note))
    head = (
        "in Python",
        "`meta_info` of `/generate`",
        "`meta_info` of a variable",
        "details of `usage`",
    )
    return _table((*head, "meaning"), rows)


def workloads() -> str:
    """The workloads of the serving benchmark."""
    rows = [(f"`{name}`", _first_line(shape)) for name, shape in WORKLOADS.items()]
    return _table(("workload", "shape at `--scale 1`"), rows)


def rooms() -> str:
    """The rooms of the packages that readers come to first, the lowest first."""
    rows = []
    for package in PACKAGES_SHOWN:
        for room, imported in ROOMS[package].items():
            path = ROOT / package.replace(".", "/") / room
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            says = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0]
            may = ", ".join(f"`{name}`" for name in imported.split()) or "none"
            rows.append((f"`{path.relative_to(ROOT)}`", " ".join(says.split()), may))
    return _table(("room", "what it is", "of its package it may import"), rows)


def provider_features() -> str:
    """What models of providers take, by the beginnings of their names."""
    rows = []
    for name, table in PROVIDERS.items():
        for pattern, names in table:
            models = f"`{pattern.replace('|', ' or ')}`" if pattern else "others"
            rows.append((name, models, _code_list(sorted(names))))
    return _table(("provider", "models", "what they take"), rows)


def _first_line(thing: Any) -> str:
    """The first paragraph of a docstring."""
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(paragraph.split())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '') for cell in line)} |\n" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "options": options,
    "routes": routes,
    "generate-fields": lambda: fields(NativeRequest, NATIVE),
    "score-fields": lambda: fields(ScoreBody, NO_EXTRAS),
    "label-fields": lambda: fields(LabelBody, LABEL_KIND),
    "tokenize-fields": lambda: fields(TokenizeBody, TOKENIZE),
    "detokenize-fields": lambda: fields(DetokenizeBody, NO_EXTRAS),
    "abort-fields": lambda: fields(AbortRequest, ABORT_KIND),
    "sampling-fields": lambda: fields(NativeSampling, NATIVE_SAMPLING),
    "completion-fields": lambda: fields(CompletionRequest, COMPLETION),
    "chat-fields": lambda: fields(ChatRequest, CHAT),
    "message-fields": lambda: fields(Message, CHAT.nested["messages"]),
    "responses-fields": lambda: fields(ResponsesRequest, RESPONSES),
    "input-fields": lambda: fields(InputItem, RESPONSES.nested["input"]),
    "anthropic-fields": lambda: fields(MessagesRequest, MESSAGES),
    "anthropic-block-fields": lambda: fields(ContentBlock, CONTENT_BLOCK),
    "anthropic-tool-fields": lambda: fields(MessagesTool, MESSAGES_TOOL),
    "stream-options-fields": lambda: fields(StreamOptions, CHAT.nested["stream_options"]),
    "structured-outputs-fields": lambda: fields(
        StructuredOutputs, CHAT.nested["structured_outputs"]
    ),
    "foreign-fields": foreign_fields,
    "sampling-params": sampling_params,
    "answer-facts": answer_facts,
    "errors": errors,
    "metrics": metrics,
    "messages": sockets,
    "workloads": workloads,
    "rooms": rooms,
    "provider-features": provider_features,
}


def documents() -> list[Path]:
    """The documents for people."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def rewritten(text: str) -> str:
    """`text` with its tables written anew from the code."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- table: {name} -->\n{TABLES[name]()}<!-- end -->"

    return _PLACE.sub(table, text)


def names_in(text: str) -> list[str]:
    """The names of the tables that `text` has places for."""
    return [match["name"] for match in _PLACE.finditer(text)]


if __name__ == "__main__":
    for document in documents():
        document.write_text(rewritten(document.read_text()))
