"""What the HTTP client sends: the ring's requests as bodies of the server's routes.

Raises RequestError, naming the field, for what the routes have no field for.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from srt.answers.tool_format import message_object, tool_object
from srt.client.generation import PromptRequest, Request, ScoreRequest, TokenizeRequest
from srt.client.media import MediaFile, data_url
from srt.wire.errors import Names, RequestError
from srt.wire.hints import SERVER_SET, Hints
from srt.wire.messages import ChatMessage, ChatOptions
from srt.wire.sampling import SamplingParams

_RING_NAMES: dict[str | None, str] = {
    **{f"sampling_params.{name}": name for name in SamplingParams.__struct_fields__},
    "top_logprobs_num": "top_logprobs",
    "token_ids_logprob": "logprob_token_ids",
    "chat_template_kwargs": "chat.template_args",
    "continue_final_message": "chat.continue_final",
    "prompt": "text",
    "image_data": "media",
    "video_data": "media",
}


def generate_body(request: Request, interval: int | None = None) -> dict[str, Any]:
    """The body for /generate. A stream has an event for each `interval` tokens (None: as the server
    has it)."""
    check_tenant(request.tenant)
    _check_chat_only(request)
    body: dict[str, Any] = {
        "stream": True,
        "incremental": True,
        "rid": request.rid,
        "cache_salt": request.cache_salt,
        "text": request.text,
        "input_ids": None if request.input_ids is None else list(request.input_ids),
        "sampling_params": sampling_fields(request.sampling) | {"stream_interval": interval},
    }
    body |= _media_fields(request.media) if request.messages is None else _chat_fields(request)
    if request.timeout_ms:
        body["timeout_ms"] = request.timeout_ms
    if request.routed_replica is not None:
        body["routed_replica"] = request.routed_replica
    if request.prediction:
        body["prediction"] = request.prediction
    if request.hints is not None:
        body["hints"] = _hint_fields(request.hints)
    if request.priority:
        body["priority"] = request.priority
    if request.service_tier:
        body["service_tier"] = request.service_tier
    if request.literal_spans:
        body["literal_spans"] = request.literal_spans
    if (scoring := request.scoring) is not None:
        body |= {"return_logprob": True, "logprob_start_len": scoring.start}
        body |= {"top_logprobs_num": scoring.top, "token_ids_logprob": scoring.ids}
    return body


def _hint_fields(hints: Hints) -> dict[str, Any]:
    """The hints that a client may give."""
    given: dict[str, Any] = to_builtins(hints)  # without defaults
    for name in set(given).intersection(SERVER_SET):
        raise RequestError(" must be unset over HTTP: the server sets it", at=f"hints.{name}")
    return given


def tokenize_body(request: TokenizeRequest) -> dict[str, Any]:
    """For /tokenize."""
    check_tenant(request.tenant)
    _check_chat_only(request)
    if request.messages is not None:
        if request.text is not None:
            raise RequestError("exactly one of text and messages must be given", param="text")
        return _chat_fields(request)
    return {"prompt": request.text, "add_special_tokens": request.add_special_tokens}


def score_body(request: ScoreRequest) -> dict[str, Any]:
    """For /score_choices."""
    check_tenant(request.tenant)
    body = {name: getattr(request, name) for name in request.__struct_fields__}
    del body["tenant"], body["media"]
    return body | _media_fields(request.media)


def ring_names(request: PromptRequest | TokenizeRequest) -> Names:
    """The ring's names of the fields of a request, by those of the bodies."""
    if isinstance(request, TokenizeRequest) or not request.media:
        return _RING_NAMES
    names = dict(_RING_NAMES)
    counts = Counter[str]()
    for i, file in enumerate(request.media):
        field = f"{file.kind}_data[{counts[file.kind]}]"
        names |= dict.fromkeys((field, f"{field}.url"), f"media[{i}]")
        counts[file.kind] += 1
    messages = (request.messages or ()) if isinstance(request, Request) else ()
    for i, message in enumerate(messages):
        for j, part in enumerate(message.parts):
            if isinstance(part, int) and 0 <= part < len(request.media):
                field = f"messages[{i}].content[{j}].{request.media[part].kind}_url"
                names |= dict.fromkeys((field, f"{field}.url"), f"media[{part}]")
    return names


def check_tenant(tenant: str) -> None:
    """Raise RequestError for a tenant that a program names: its API key decides."""
    if tenant:
        raise RequestError(" must be empty over HTTP: the server sets it", at="tenant")


def _media_fields(media: Sequence[MediaFile]) -> dict[str, Any]:
    """What a text shows: pictures and videos are lists of their own."""
    fields = dict[str, list[Any]]()
    for file in media:
        fields.setdefault(f"{file.kind}_data", []).append(_shown(file))
    return fields


def _shown(file: MediaFile) -> Any:
    options = {"detail": file.detail, "num_frames": file.num_frames}
    is_plain = options == {"detail": "auto", "num_frames": 0}
    return data_url(file) if is_plain else {"url": data_url(file), **options}


def sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """The fields under their own names; "" is no constraint over HTTP, so it is refused here."""
    for name in ("regex", "json_schema", "ebnf", "structural_tag"):
        if getattr(sampling, name) == "":
            raise RequestError(" must not be empty", at=name)
    names = (name for name in sampling.__struct_fields__ if name != "reveals_prefix")
    return {name: getattr(sampling, name) for name in names}  # the server sees who asks


def _chat_fields(request: Request | TokenizeRequest) -> dict[str, Any]:
    """The messages, and how the template writes them."""
    media = request.media if isinstance(request, Request) else ()
    body: dict[str, Any] = {
        "messages": [_message(message, media) for message in request.messages or []]
    }
    if request.tools:
        body["tools"] = [tool_object(tool) for tool in request.tools]
    chat = request.chat
    if chat.template_args:
        body["chat_template_kwargs"] = template_args(chat.template_args)
    if chat.continue_final:
        body["continue_final_message"] = True
    elif not chat.add_generation_prompt:
        body["add_generation_prompt"] = False
    return body


def _message(message: ChatMessage, media: Sequence[MediaFile]) -> dict[str, Any]:
    made = message_object(message, arguments_as_text=True)
    if not message.parts:
        return made
    return made | {"content": [_part(part, media) for part in message.parts]}


def _part(part: str | int, media: Sequence[MediaFile]) -> dict[str, Any]:
    """A text, or the medium of this number in the request."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not 0 <= part < len(media):
        raise RequestError(f" has no number {part}, which a message names", at="media")
    file = media[part]
    if file.kind == "video":
        shown = {"url": data_url(file), "num_frames": file.num_frames}
        return {"type": "video_url", "video_url": shown}
    shown = {"url": data_url(file), "detail": file.detail}
    return {"type": "image_url", "image_url": shown}


def template_args(text: str) -> dict[str, Any]:
    """The variables of a chat template. RequestError for what is no JSON object."""
    try:
        args = json.loads(text)
    except (ValueError, RecursionError):
        args = None
    if not isinstance(args, dict):
        raise RequestError(" must be the text of a JSON object", at="chat.template_args")
    return args


def _check_chat_only(request: Request | TokenizeRequest) -> None:
    if request.messages is None and request.tools:
        raise RequestError(" need messages", at="tools")
    if request.messages is None and request.chat != ChatOptions():
        raise RequestError(" needs messages", at="chat")
