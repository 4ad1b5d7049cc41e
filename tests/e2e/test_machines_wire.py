"""What passes between a head and an agent, seen by a proxy that also delays it."""

import asyncio
from pathlib import Path

import pytest

from bench.programs.delay import relayed
from srt.client.face import AsyncClient
from srt.cluster.keys import make_keys
from srt.wire.messages import pack_ids
from tests.e2e.machines import join_address, let_in, running_machine, wait_replicas
from tests.e2e.server import Server, running_server
from tests.e2e.test_machines import answers

pytestmark = pytest.mark.full
DELAY_S = 0.025  # each way
SECRET = "The password of the north gate is swordfish, and nobody else may ever know it."
FIELD = "name_of_the_hidden_field"
SCHEMA = {
    "type": "object",
    "properties": {FIELD: {"enum": ["one", "two"]}},
    "required": [FIELD],
    "additionalProperties": False,
}


@pytest.mark.parametrize("has_keys", [True, False], ids=["keys", "insecure"])
def test_what_a_proxy_sees(tmp_path: Path, has_keys: bool) -> None:
    """Without keys it finds prompts and grammars, which shows that it would find them."""
    seen, options = bytearray(), ["--cluster-insecure"]
    keys: tuple[str, ...] = ()
    if has_keys:
        make_keys(tmp_path / "keys")
        options = ["--cluster-bind", "tcp://127.0.0.1:0", "--cluster-keys", str(tmp_path / "keys")]
        keys = let_in(tmp_path / "keys", tmp_path / "node-keys", "node")
    with (
        running_server(tmp_path, *options, "--remote-replicas", "1") as head,
        relayed(join_address(head), 2 * DELAY_S, seen.extend) as address,
        running_machine(tmp_path, address, *keys),
    ):
        wait_replicas(head, [0, 1], 2)
        prompt, text = asyncio.run(_ask(head))
        (grammar,) = (head.directory / "grammars").iterdir()
        compiled = grammar.read_bytes()
        assert asyncio.run(answers(head, 1)) == asyncio.run(answers(head, 0))
    passed = bytes(seen)
    assert FIELD in text and len(passed) > len(compiled) > 100
    assert [part in passed for part in (prompt, compiled)] == 2 * [not has_keys]
    for words in (SECRET, text):  # texts do not travel: the head makes ids of them, and them of ids
        assert words.encode() not in passed


async def _ask(head: Server) -> tuple[bytes, str]:
    """A prompt's ids, as they travel, and a constrained text."""
    async with AsyncClient(head.ring) as client:
        ids = await client.tokenize(SECRET)
        sampling = {"temperature": 0.0, "max_new_tokens": 40, "json_schema": SCHEMA}
        output = await client.generate(SECRET, sampling=sampling, routed_replica=1)
    return pack_ids(ids), output.text
