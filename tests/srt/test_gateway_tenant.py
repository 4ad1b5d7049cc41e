"""Whom the gateway asks for: its callers by key or address."""

from typing import Any

from tests.fakes import FakeClient
from tests.srt.gateway_setup import in_process

ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/generate", {"text": "a"}),
    ("/v1/completions", {"prompt": "a"}),
    ("/tokenize", {"prompt": "a"}),
    ("/score_choices", {"text": "a", "continuations": ["b"]}),
)


async def tenants(client: FakeClient, key: str | None, **info: Any) -> set[str]:
    """What came to the ring with requests of every kind."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with in_process(client, **info) as http:
        for path, body in ASKED:
            assert (await http.post(path, json=body, headers=headers)).status_code == 200
    asked = [*client.requests, *client.tokenized, *client.scores]
    assert len(asked) == len(ASKED)
    return {request.tenant for request in asked}


async def test_without_keys_it_is_the_address() -> None:
    assert await tenants(FakeClient(), None) == {"127.0.0.1"}
    assert await tenants(FakeClient(), "ignored") == {"127.0.0.1"}


async def test_with_keys_it_is_a_digest_of_the_key() -> None:
    keys = ("first", "second")
    (first,) = await tenants(FakeClient(), "first", api_keys=keys)
    (second,) = await tenants(FakeClient(), "second", api_keys=keys)
    assert first != second and len(first) == len(second) == 16
    assert "first" not in first
