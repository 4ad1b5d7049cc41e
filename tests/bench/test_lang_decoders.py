"""The measurement of decoders and logs, on a back end that answers at once."""

import asyncio

from bench.lang import InstantBackend
from bench.lang_decoders import Recording, at_once_ms, log_us, parse_args, replay_ms
from lang import loop
from lang.backends.base import Completion, Prompt
from lang.backends.runtime import RuntimeEndpoint
from lang.backends.sampling import PLAIN, Sampling


def test_what_needs_no_model_is_measured() -> None:
    took = log_us(calls=3, rounds=1)
    assert list(took) == ["none", "memory", "file", "replay"]
    assert min(replay_ms(InstantBackend(), 2, 3)) > 0
    assert at_once_ms(2, 1) > 0 and parse_args([]).rounds > 1


def test_calls_side_by_side_are_one_level() -> None:
    class Answering(RuntimeEndpoint):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
            await asyncio.sleep(0)
            return Completion("x", "stop", None, 4, 3, 2)

    class Counted(Recording, Answering):
        pass

    async def calls(backend: Recording) -> None:
        for number in (1, 3, 2):
            await asyncio.gather(*(backend.generate(Prompt("p"), PLAIN) for _ in range(number)))

    backend = Counted("ipc:///nowhere")
    loop.call(calls(backend))
    assert list(map(len, backend.levels)) == [1, 3, 2]
    assert (backend.prompt_tokens, backend.cached_tokens, backend.new_tokens) == (24, 18, 12)
