"""Bodies of HTTP requests that are made to block the gateway, for `bench.hostile` and the tests.

Each is a route and a body; all are refused or answered, and other clients must notice none of them.
"""

import json
from collections.abc import Callable
from typing import NamedTuple


class HostileBody(NamedTuple):
    """A body for a route; `make` makes it, which takes a while."""

    path: str
    make: Callable[[], bytes]


def _repeated(head: str, item: str, count: int, tail: str) -> Callable[[], bytes]:
    """`count` times `item` with commas between them."""
    return lambda: (head + ",".join([item] * count) + tail).encode()


def _numbered(head: str, item: str, count: int, tail: str) -> Callable[[], bytes]:
    """The same, with the number of each in the place of `#`."""

    def make() -> bytes:
        return (head + ",".join(item.replace("#", str(i)) for i in range(count)) + tail).encode()

    return make


def _ids(head: str, count: int, tail: str) -> Callable[[], bytes]:
    return lambda: (head + ",".join(str(i % 900) for i in range(count)) + tail).encode()


def _joined_prompts() -> bytes:
    """900,000 ids that would go before each of 1024 items."""
    return json.dumps(
        {"query": list(range(900_000)), "items": [[1]] * 1024, "label_token_ids": [1]}
    ).encode()


_TEXT_130K = json.dumps({"prompt": "The quick brown fox, " * 6200, "return_token_strs": True})

BODIES: dict[str, HostileBody] = {
    "5,000,000 empty lists": HostileBody(
        "/generate", _repeated('{"input_ids":[', "[]", 5_000_000, "]}")
    ),
    "1,000,000 unknown keys": HostileBody("/generate", _numbered("{", '"k#":1', 10**6, "}")),
    "logit_bias of 1,000,000": HostileBody(
        "/v1/completions", _numbered('{"prompt":"a","logit_bias":{', '"#":1', 10**6, "}}")
    ),
    "logit_bias of 60,000": HostileBody(
        "/generate",
        _numbered('{"text":"a","sampling_params":{"logit_bias":{', '"#":1.5', 60_000, "}}}"),
    ),
    "60,000 unknown keys": HostileBody(
        "/v1/chat/completions", _numbered("{", '"k#":1', 60_000, "}")
    ),
    "5,000,000 messages": HostileBody(
        "/v1/chat/completions", _repeated('{"messages":[', "{}", 5_000_000, "]}")
    ),
    "10,000 pictures": HostileBody(
        "/v1/chat/completions",
        _repeated(
            '{"messages":[{"role":"user","content":[',
            '{"type":"image_url","image_url":{"url":"data:;base64,AAAA"}}',
            10_000,
            "]}]}",
        ),
    ),
    "15 MiB of a picture": HostileBody(
        "/generate", lambda: b'{"text":"a","image_data":"' + b"A" * (15 * 2**20) + b'"}'
    ),
    "16,000 messages": HostileBody(
        "/v1/chat/completions",
        _repeated('{"messages":[', '{"role":"user","content":"a, b","name":"c"}', 16_000, "]}"),
    ),
    "16,000 input items": HostileBody(
        "/v1/responses",
        _repeated('{"input":[', '{"role":"user","content":"a","id":"1"}', 16_000, "]}"),
    ),
    "8,000,000 ids": HostileBody("/generate", _repeated('{"input_ids":[', "1", 8_000_000, "]}")),
    "1,000,000 ids": HostileBody("/generate", _ids('{"input_ids":[', 10**6, "]}")),
    "1,000,000 ids of a completion": HostileBody(
        "/v1/completions", _ids('{"prompt":[', 10**6, "]}")
    ),
    "1,000,000 ids to score": HostileBody(
        "/score_choices", _ids('{"text":"a","continuations":[[', 10**6, "]]}")
    ),
    "100,000 continuations": HostileBody(
        "/score_choices", _repeated('{"text":"a","continuations":[', '"b"', 100_000, "]}")
    ),
    "900,000 ids before each item": HostileBody("/v1/score", _joined_prompts),
    "2 MiB before each item": HostileBody(
        "/v1/score",
        lambda: json.dumps(
            {"query": "a " * 1_000_000, "items": ["b"] * 1024, "label_token_ids": [1]}
        ).encode(),
    ),
    "1,000,000 ids to decode": HostileBody("/detokenize", _ids('{"tokens":[', 10**6, "]}")),
    "130,000 characters to tokenize": HostileBody("/tokenize", _TEXT_130K.encode),
    "1024 texts to tokenize": HostileBody(
        "/tokenize", _repeated('{"prompt":[', '"' + "fox, " * 600 + '"', 1024, "]}")
    ),
    "slow numbers": HostileBody(
        "/v1/completions", _repeated('{"prompt":[', "1.1e300", 1_500_000, "]}")
    ),
    "slow numbers in a metadata": HostileBody(
        "/v1/completions", _repeated('{"prompt":"a","metadata":[', "1.1e300", 16_000, "]}")
    ),
    "numbers of 4,000 digits": HostileBody(
        "/generate", _repeated('{"input_ids":[', "1" * 4000, 3800, "]}")
    ),
    "10,000 deep": HostileBody(
        "/v1/responses", lambda: b'{"input":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    ),
    "15 MiB of blanks": HostileBody("/generate", lambda: b" " * (15 * 2**20) + b"{}"),
    "15 MiB of a text": HostileBody(
        "/generate", lambda: b'{"text":"' + b"a" * (15 * 2**20) + b'"}'
    ),
    "escapes": HostileBody("/generate", lambda: b'{"text":"' + b'\\"\\\\' * 500_000 + b'"}'),
    "100,000 choices": HostileBody(
        "/v1/completions",
        _numbered('{"prompt":"a","structured_outputs":{"choice":[', '"c#"', 100_000, "]}}"),
    ),
    "begins of calls": HostileBody(
        "/parse_function_call",
        lambda: json.dumps({"text": "<tool_call>" * 23_000, "tools": []}).encode(),
    ),
    "10,000 calls": HostileBody(
        "/parse_function_call",
        lambda: json.dumps({"text": "<tool_call>{}</tool_call>" * 10_000, "tools": []}).encode(),
    ),
    "a long reasoning": HostileBody(
        "/separate_reasoning",
        lambda: json.dumps(
            {"text": "<think> " + "</thin" * 340_000, "reasoning_parser": "deepseek-r1"}
        ).encode(),
    ),
    "2 MB of rid": HostileBody(
        "/abort_request", lambda: json.dumps({"rid": "a" * 2_000_000}).encode()
    ),
}
