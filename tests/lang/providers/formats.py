"""The formats of providers: what they refuse in a request, and how they answer."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tests.lang.providers.scripted import Request, Said, event, pieces

NO_PREFILL = ("claude-opus-4-6", "claude-sonnet-4-6", "claude-sonnet-5", "claude-opus-5")
_STRICT = {  # keywords of schemas that a strict mode takes
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "$ref"),
    *("$defs", "description", "title", "pattern", "format", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def strict_fault(schema: Any, taken: set[str], root: bool = True) -> str | None:
    """Why a strict mode refuses a schema: keywords, open objects, optional members, a root."""
    if root and schema.get("type") != "object":
        return "schema must be a JSON Schema of type 'object' at its root, and no anyOf"
    if unknown := schema.keys() - taken:
        return f"{sorted(unknown)} is not permitted"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return "additionalProperties is required to be false"
        if set(schema["required"]) != schema["properties"].keys():
            return "required must name every property"
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    inner += schema.get("anyOf", [])
    inner += [schema["items"]] if "items" in schema else []
    return next((fault for each in inner if (fault := strict_fault(each, taken, False))), None)


class AnthropicFormat:
    """The messages API, version 2026-10-21, and 2023-06-01 where the header says so."""

    fields: ClassVar = {
        *("model", "max_tokens", "messages", "system", "stop_sequences", "stream", "thinking"),
        *("tools", "tool_choice", "output_config", "service_tier", "metadata"),
    }

    def refusal(self, request: Request) -> str | None:
        body, version = request.body, request.headers["anthropic-version"]
        old = {"temperature", "top_p", "top_k"} if version == "2023-06-01" else set()
        if unknown := sorted(body.keys() - self.fields - old):
            return f"{unknown[0]}: Extra inputs are not permitted"
        if not body["messages"]:
            return "messages: at least one message is required"
        last = body["messages"][-1]
        if last["role"] == "assistant":
            if body["model"].startswith(NO_PREFILL):
                return "This model does not support assistant message prefill"
            if last["content"] != last["content"].rstrip():
                return "final assistant content cannot end with trailing whitespace"
        if any(not stop.strip() for stop in body.get("stop_sequences", [])):
            return "stop_sequences: each stop sequence must contain non-whitespace"
        blocks = [b for m in body["messages"] for b in m["content"] if isinstance(b, dict)]
        if any(b["type"] == "text" and not b["text"] for b in blocks):
            return "messages: text content blocks must be non-empty"
        if any(b["type"].startswith("tool_") for b in blocks) and not body.get("tools"):
            return "Requests which include `tool_use` blocks must define tools"
        marks = [b for b in [*blocks, *body.get("system", [])] if "cache_control" in b]
        if len(marks) > 4:
            return f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
        form = body.get("output_config", {}).get("format")
        taken = _STRICT - {"maxItems", "minimum", "maximum", "multipleOf"}
        return None if form is None else strict_fault(form["schema"], taken)

    def error(self, status: int, message: str) -> Any:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {429: "rate_limit_error", 529: "overloaded_error"}
        error = {"type": kinds.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    def streams(self, request: Request) -> bool:
        return bool(request.body.get("stream"))

    def _frame(self, said: Said, content: list[Any]) -> dict[str, Any]:
        usage = {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 3}
        usage |= {"cache_creation_input_tokens": 0}
        stop = {"stop_reason": said.finish or "end_turn", "stop_sequence": None}
        frame = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
        return frame | {"content": content, "usage": usage} | stop | dict(said.extra)

    def whole(self, said: Said, request: Request) -> Any:
        thinking = {"type": "thinking", "thinking": said.thoughts, "signature": "s"}
        content: list[Any] = [thinking] if said.thoughts else []
        # A list of parts: the text comes in two.
        half = len(said.text) // 2
        content += [
            {"type": "text", "text": part} for part in (said.text[:half], said.text[half:]) if part
        ]
        return self._frame(said, content)

    def events(self, said: Said, request: Request) -> Sequence[bytes]:
        return [event(each, each["type"]) for each in self._events(said)]

    def _events(self, said: Said) -> Iterator[Any]:
        whole = self._frame(said, [])
        ended = {key: whole[key] for key in ("stop_reason", "stop_sequence")} | dict(said.extra)
        yield {"type": "message_start", "message": whole | {"stop_reason": None}}
        yield {"type": "ping"}
        parts = [("thinking", said.thoughts)] if said.thoughts else []
        for index, (kind, text) in enumerate([*parts, ("text", said.text)]):
            block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for piece in pieces(text):
                delta = {"type": f"{kind}_delta", kind: piece}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 2}}
        yield {"type": "message_stop"}

    def error_event(self, error: Any) -> bytes:
        return event(error, "error")


class GeminiFormat:
    """generateContent and streamGenerateContent, of the Gemini API and of Vertex AI."""

    fields: ClassVar = {
        *("contents", "systemInstruction", "generationConfig", "safetySettings", "serviceTier"),
        *("labels", "tools", "toolConfig"),
    }
    config: ClassVar = {
        *("temperature", "topP", "topK", "candidateCount", "maxOutputTokens", "stopSequences"),
        *("presencePenalty", "frequencyPenalty", "seed", "responseMimeType", "responseSchema"),
        "thinkingConfig",
    }
    schema: ClassVar = {
        *("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems"),
        *("properties", "required", "minLength", "maxLength", "pattern", "anyOf", "items"),
        *("propertyOrdering", "minimum", "maximum"),
    }

    def refusal(self, request: Request) -> str | None:
        body = request.body
        config = body.get("generationConfig", {})
        unknown = sorted((body.keys() - self.fields) | (config.keys() - self.config))
        if unknown:
            return f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot find field.'
        if not body["contents"]:
            return "GenerateContentRequest.contents: contents is not specified"
        if {each["role"] for each in body["contents"]} - {"user", "model"}:
            return "Please use a valid role: user, model."
        return self._schema_fault(config["responseSchema"]) if "responseSchema" in config else None

    def _schema_fault(self, schema: Any) -> str | None:
        # The package writes names as protocol buffers have them, which the API takes too.
        schema = {_camel(name): value for name, value in schema.items()}
        if unknown := sorted(schema.keys() - self.schema):
            return f'Unknown name "{unknown[0]}" at response_schema: Cannot find field.'
        if "enum" in schema and schema["type"] != "STRING":
            return "response_schema: only allowed for STRING type"
        inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
        inner += [schema["items"]] if "items" in schema else []
        return next((fault for each in inner if (fault := self._schema_fault(each))), None)

    def error(self, status: int, message: str) -> Any:
        names = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        named = {"code": status, "message": message, "status": names.get(status, "INTERNAL")}
        return {"error": named}

    def streams(self, request: Request) -> bool:
        return ":streamGenerateContent" in request.path

    def _payload(self, parts: list[Any], said: Said, count: int, end: bool) -> dict[str, Any]:
        ended = {"finishReason": said.finish or "STOP"} if end else {}
        candidates = [
            {"content": {"role": "model", "parts": parts}, "index": i, **ended}
            for i in range(count)
        ]
        usage = {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 4}
        usage |= {"cachedContentTokenCount": 3, "totalTokenCount": 11}
        made: dict[str, Any] = {"candidates": candidates, "responseId": "r1"}
        return made | ({"usageMetadata": usage} if end else {}) | dict(said.extra)

    def whole(self, said: Said, request: Request) -> Any:
        parts: list[Any] = [{"text": said.thoughts, "thought": True}] if said.thoughts else []
        half = len(said.text) // 2
        parts += [{"text": part} for part in (said.text[:half], said.text[half:]) if part]
        count = request.body.get("generationConfig", {}).get("candidateCount", 1)
        return self._payload(parts, said, count, end=True)

    def events(self, said: Said, request: Request) -> Sequence[bytes]:
        made = [self._payload([{"text": p}], said, 1, end=False) for p in pieces(said.text)]
        if said.thoughts:
            thought = {"text": said.thoughts, "thought": True}
            made.insert(0, self._payload([thought], said, 1, end=False))
        return [event(each) for each in [*made, self._payload([], said, 1, end=True)]]

    def error_event(self, error: Any) -> bytes:
        return event(error)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class OpenAIFormat:
    """Chat completions, with the fields that OpenAI's own models take."""

    fields: ClassVar = {
        *("model", "messages", "max_completion_tokens", "max_tokens", "stop", "stream", "n"),
        *("stream_options", "temperature", "top_p", "seed", "frequency_penalty"),
        *("presence_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format"),
        *("reasoning_effort", "verbosity", "service_tier", "store"),
    }

    def refusal(self, request: Request) -> str | None:
        body = request.body
        if unknown := sorted(body.keys() - self.fields):
            return f"Unrecognized request argument supplied: {unknown[0]}"
        form = body.get("response_format")
        if form is None:
            return None
        described = form["json_schema"]
        fault = strict_fault(described["schema"], _STRICT) if described["strict"] else None
        return fault and f"Invalid schema for response_format: {fault}"

    def error(self, status: int, message: str) -> Any:
        return {"error": {"message": message, "type": "t", "param": None, "code": None}}

    def streams(self, request: Request) -> bool:
        return bool(request.body.get("stream"))

    def whole(self, said: Said, request: Request) -> Any:
        choices = []
        for index in range(request.body.get("n", 1)):
            message = {"role": "assistant", "content": said.text} | dict(said.extra)
            finish = said.finish or "stop"
            choices.append({"index": index, "message": message, "finish_reason": finish})
        usage: dict[str, Any] = {"prompt_tokens": 5, "completion_tokens": 2 * len(choices)}
        usage |= {
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 1},
        }
        frame = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
        return frame | {"choices": choices, "usage": usage}

    def events(self, said: Said, request: Request) -> Sequence[bytes]:
        made = [event(self._chunk({"role": "assistant"} | dict(said.extra)))]
        made += [event(self._chunk({"content": piece})) for piece in pieces(said.text)]
        made.append(event(self._chunk({}, said.finish or "stop")))
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        made.append(event(self._chunk({}) | {"choices": [], "usage": usage}))
        return [*made, b"data: [DONE]\n\n"]

    def _chunk(self, delta: Any, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        frame = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return frame | {"choices": [choice]}

    def error_event(self, error: Any) -> bytes:
        return event(error)


def text_of(content: Any) -> str:
    """The text of a message's content, for comparisons."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", json.dumps(part)) for part in content)
