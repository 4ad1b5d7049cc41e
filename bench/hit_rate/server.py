"""The reuse of a real server with default options: a shuffled batch, a pool for one document."""

import asyncio
import random
import tempfile
from pathlib import Path

import httpx2

from bench.hit_rate.families import random_text
from tests.e2e.server import Server, running_server

SERVED_TARGET = 0.95
DOCUMENTS, QUESTIONS = 6, 6
DOCUMENT_LEN, QUESTION_LEN, OUTPUTS = 300, 12, 4  # tokens
POOL = 400
TIMEOUT_S = 600.0


def served_reuse() -> float:
    """The share of the reachable reuse, on a server that is started for one batch."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(Path(directory), "--max-total-tokens", str(POOL)) as server,
    ):
        return asyncio.run(batch_reuse(server))


async def batch_reuse(server: Server) -> float:
    """Send 36 requests over 6 documents, shuffled and all at once, to an idle server that has not
    seen them; return the share of the reachable reuse. Raises httpx2.HTTPError if one fails."""
    rng = random.Random(0)
    documents = [random_text(rng, DOCUMENT_LEN) for _ in range(DOCUMENTS)]
    prompts = [
        [*document.tolist(), *random_text(rng, QUESTION_LEN).tolist()]
        for document in documents
        for _ in range(QUESTIONS)
    ]
    rng.shuffle(prompts)
    before = server.stats()["computed_prompt_tokens_total"]
    async with httpx2.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) as http:
        await asyncio.gather(*(_generate(http, prompt) for prompt in prompts))
    computed = server.wait_idle()["computed_prompt_tokens_total"] - before
    reachable = (DOCUMENTS * (QUESTIONS - 1)) * DOCUMENT_LEN
    reused: int = sum(len(prompt) for prompt in prompts) - computed
    return reused / reachable


async def _generate(http: httpx2.AsyncClient, prompt: list[int]) -> None:
    sampling = {"max_new_tokens": OUTPUTS, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling}
    (await http.post("/generate", json=body)).raise_for_status()
