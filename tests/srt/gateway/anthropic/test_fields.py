"""Every field of the types of Anthropic's package has a class here, and does what it says: the
lists come from the package."""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from typing_extensions import get_type_hints, is_typeddict

from srt.gateway.wire import anthropic as wire
from srt.gateway.wire.anthropic import (
    ContentBlock,
    CountRequest,
    InputMessage,
    JsonOutput,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    OutputConfig,
    ResultBlock,
    Source,
    SystemBlock,
    ThinkingConfig,
)
from srt.gateway.wire.fields import COUNT, MESSAGES, Hint, Ignored, Kind, OnlyNeutral
from tests.fakes import FakeClient
from tests.srt.gateway.anthropic.package import anthropic
from tests.srt.gateway.anthropic.setup import BODY, ROUTE, WEATHER, error_of
from tests.srt.gateway.setup import in_process

TYPES, BETA = anthropic.types, anthropic.types.beta
CREATE = TYPES.message_create_params.MessageCreateParamsNonStreaming
BETA_CREATE = BETA.message_create_params.MessageCreateParamsNonStreaming
COUNTED = TYPES.message_count_tokens_params.MessageCountTokensParams
BETA_COUNTED = BETA.message_count_tokens_params.MessageCountTokensParams
# A value for each honoured field, beside those of BODY.
HONOURED: dict[str, Any] = {
    "output_config": {"effort": "low"},
    "stop_sequences": ["x"],
    "stream": False,
    "system": [{"type": "text", "text": "s"}],
    "thinking": {"type": "adaptive"},
    "tool_choice": {"type": "none"},
    "tools": [WEATHER],
}
# For each field that is refused, a value that would have an effect.
ASKING: dict[str, Any] = {
    "compaction": {"type": "summarize"},
    "container": "c",
    "mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}],
    "thread": {"type": "create"},
}


def dicts(hint: Any) -> Iterator[Any]:
    """The types of JSON objects in a type."""
    if is_typeddict(hint):
        yield hint
    for part in hint if isinstance(hint, tuple) else get_args(hint):
        yield from dicts(part)


def names(types: Any) -> set[str]:
    """The fields of any of these types of objects."""
    return {name for each in dicts(types) for name in get_type_hints(each)}


def of(field: str, *types: Any) -> Any:
    """The types of a field, in any of the types that have it."""
    found = [get_type_hints(each) for each in types]
    return tuple(hints[field] for hints in found if field in hints)


def honoured(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


ROUTES: list[Any] = [
    pytest.param((CREATE, BETA_CREATE), MessagesRequest, MESSAGES, ROUTE, id="messages"),
    pytest.param((COUNTED, BETA_COUNTED), CountRequest, COUNT, f"{ROUTE}/count_tokens", id="count"),
]


@pytest.mark.parametrize(("theirs", "struct", "kind", "route"), ROUTES)
async def test_each_field_does_what_its_class_says(
    theirs: Any, struct: type[msgspec.Struct], kind: Kind, route: str
) -> None:
    known = names(theirs)
    assert {"model", "messages", "betas", "thinking"} <= known
    client = FakeClient()

    async def post(fields: dict[str, Any]) -> Any:
        return await http.post(route, json=BODY | fields)

    def ring() -> Any:
        """What the last body has asked the ring for."""
        (last,) = [*client.requests, *client.tokenized][-1:]
        client.requests.clear()
        client.tokenized.clear()
        return last

    async with in_process(client) as http:
        await post({})
        plain = ring()
        for name in sorted(known):
            listed = kind.fields.get(name)
            assert (name in honoured(struct)) != (listed is not None), f"{name}: in one of the two"
            if listed is None:
                response = await post({name: HONOURED[name]} if name in HONOURED else {})
                assert response.status_code == 200, (name, response.text)
                ring()
            elif isinstance(listed, OnlyNeutral):
                for value in (None, *listed.neutral):
                    assert (await post({name: value})).status_code == 200, name
                    assert ring() == plain
                refused = await post({name: ASKING[name]})
                assert (refused.status_code, error_of(refused)["param"]) == (400, name)
            else:
                assert isinstance(listed, Hint | Ignored)
                response = await post({name: {"x": "y"}})
                assert ring() == plain, name
                told = response.headers.get("x-ignored-fields")
                assert told == (name if isinstance(listed, Hint) else None)


MESSAGE = of("messages", CREATE, BETA_CREATE)
BLOCK = of("content", *dicts(MESSAGE))
IMAGE = (TYPES.ImageBlockParam, BETA.BetaImageBlockParam)
OUTPUT = of("output_config", CREATE, BETA_CREATE)
NESTED: list[Any] = [
    (MESSAGE, [InputMessage], ["messages"]),
    (BLOCK, [ContentBlock], ["messages", "content"]),
    (of("system", CREATE, BETA_CREATE), [SystemBlock], ["system"]),
    (of("tools", CREATE, BETA_CREATE), [MessagesTool], ["tools"]),
    (of("tool_choice", CREATE, BETA_CREATE), [MessagesToolChoice], ["tool_choice"]),
    (of("thinking", CREATE, BETA_CREATE), [ThinkingConfig], ["thinking"]),
    (OUTPUT, [OutputConfig], ["output_config"]),
    (of("format", *dicts(OUTPUT)), [JsonOutput], ["output_config", "format"]),
    ((TYPES.TextBlockParam, IMAGE), [ResultBlock], ["messages", "content", "content"]),
    (
        (TYPES.Base64ImageSourceParam, TYPES.URLImageSourceParam),
        [Source],
        ["messages", "content", "source"],
    ),
]


@pytest.mark.parametrize(
    ("theirs", "structs", "path"), NESTED, ids=[".".join(path) for _, _, path in NESTED]
)
def test_fields_within_fields(theirs: Any, structs: Any, path: list[str]) -> None:
    (struct,) = structs
    kind = MESSAGES
    for name in path:
        kind = kind.nested[name]
    known = names(theirs)
    assert known and kind.honoured == honoured(struct)
    for name in known:
        assert (name in kind.honoured) != (name in kind.fields), name


def test_answers_have_the_fields_of_the_package() -> None:
    """Those that it must have, by its own types; one more only for those who ask for it."""
    asked_for = {"prefix"}
    for theirs, ours in (
        (TYPES.Message, wire.MessageOut),
        (TYPES.Usage, wire.MessagesUsage),
        (TYPES.TextBlock, wire.TextOut),
        (TYPES.ThinkingBlock, wire.ThinkingOut),
        (TYPES.ToolUseBlock, wire.ToolUseOut),
        (TYPES.ModelInfo, wire.ModelInfo),
        (TYPES.MessageTokensCount, wire.TokensCount),
    ):
        needed = {name for name, field in theirs.model_fields.items() if field.is_required()}
        tag = {"type"} if ours.__struct_config__.tag else set()
        assert needed <= honoured(ours) | tag, theirs
        assert honoured(ours) - asked_for <= set(theirs.model_fields), theirs
    reasons = set(get_args(TYPES.StopReason))
    assert set(get_args(wire.StopReason)) <= reasons
