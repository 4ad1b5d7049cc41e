"""Programs for the type checker: it reads this file, and nothing runs it.

It must find each error that is ignored here: an `ignore` without one is itself an error.
"""

from collections.abc import AsyncGenerator
from typing import assert_type

from srt import AsyncClient, Engine, Picture, Video
from srt.client.generation import GenerateOutput, Generation, ScoreOutput
from srt.wire.messages import ChatMessage
from srt.wire.sampling import SamplingParams


async def asks(client: AsyncClient) -> None:
    sampling = SamplingParams(max_new_tokens=3)
    assert_type(await client.generate("a", sampling=sampling), GenerateOutput)
    assert_type(await client.generate("a", sampling={"min_p": 0.1}, timeout_ms=5), GenerateOutput)
    chat = [{"role": "user", "content": "b"}]
    assert_type(
        await client.submit(messages=[ChatMessage("user", "a"), *chat], tools=[{"name": "f"}]),
        Generation,
    )
    assert_type(await client.submit_samples(text="a", return_logprob=True), list[Generation])
    assert_type(client.stream("a", cache_salt="x"), AsyncGenerator[GenerateOutput, None])
    assert_type(await client.tokenize(messages=chat), list[int])
    assert_type(await client.score("a", ["b", [1, 2]], input_ids=None), ScoreOutput)
    shown = await client.generate("a", media=["a.png", b"", Picture(b"", "low"), Video("a.mp4")])
    assert_type(shown, GenerateOutput)


async def asks_wrongly(client: AsyncClient) -> None:
    await client.generate("a", colour="red")  # type: ignore[call-arg]
    await client.generate("a", timeout_ms="5")  # type: ignore[arg-type]
    await client.tokenize("a", sampling={})  # type: ignore[call-arg]
    await client.score("a", ["b"], stream=True)  # type: ignore[call-arg]
    await client.generate("a", media=[5])  # type: ignore[list-item]


def runs(engine: Engine) -> None:
    assert_type(engine.generate("a"), GenerateOutput)
    assert_type(engine.generate(["a", "b"], {"top_k": 3}), list[GenerateOutput])
    assert_type(engine.score("a", ["b"]), ScoreOutput)
    engine.generate(["a", "b"], media=[[b""], ["b.png"]])
    engine.generate(5)  # type: ignore[call-overload]
    engine.generate("a", colour="red")  # type: ignore[call-overload]


async def runs_beside(engine: Engine) -> None:
    assert_type(await engine.async_generate("a"), GenerateOutput)
    assert_type(await engine.async_generate(("a", "b")), list[GenerateOutput])
