"""A back end that makes up answers, holds them back, fails and counts, as a test needs it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future

from lang import loop
from lang.backends.base import BackendDefaults, Capabilities, Completion, Prompt, Scored, Scores
from lang.backends.sampling import Sampling
from lang.chat_template import ChatTemplate, chat_template_named

BOOM = "BOOM"  # a prompt that ends like this fails
HANG = "HANG"  # a prompt that ends like this is never answered

Answer = Callable[[Prompt, Sampling], str]


def echo_size(prompt: Prompt, sampling: Sampling) -> str:
    """An answer by which prompts can be told apart: the prompt's length."""
    return f"<{len(prompt.text)}>"


class FakeBackend(BackendDefaults):
    """`answer` makes the texts. `live` calls are in flight; `most_live` is the maximum so far."""

    def __init__(
        self,
        answer: Answer = echo_size,
        *,
        template: str = "chatml",
        chat_only: bool = False,
        score: bool = True,
        images: bool = False,
    ) -> None:
        self.capabilities = Capabilities(
            chat_only=chat_only, score=score, images=images, constraints=True
        )
        self.answer = answer
        self.template = template
        self.finish = "stop"
        self.prompts: list[Prompt] = []
        self.samplings: list[Sampling] = []
        self.prefetched: list[str] = []
        self.flushed = 0
        self.live = 0
        self.most_live = 0
        self.closing = 0  # calls that were cancelled
        self.aborted = 0  # cancelled calls that ended their close, which waits for `may_close`
        self.may_close: Future[None] = Future()
        self.may_close.set_result(None)
        self.error: Exception = ValueError("the model exploded")
        self.logprob: Callable[[str], float] = lambda text: -float(len(text))

    async def chat_template(self) -> ChatTemplate:
        await asyncio.sleep(0)
        return chat_template_named(self.template)

    async def _enter(self, prompt: Prompt, sampling: Sampling) -> str:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            await asyncio.sleep(0)
            if prompt.text.endswith(BOOM):
                raise self.error
            if prompt.text.endswith(HANG):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.closing += 1
            await loop.arrival(self.may_close)
            self.aborted += 1
            raise
        finally:
            self.live -= 1
        return self.answer(prompt, sampling)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        return self._completion(prompt, await self._enter(prompt, sampling), self.finish)

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        text = await self._enter(prompt, sampling)
        for count in range(1, len(text)):
            yield self._completion(prompt, text[:count], None)
            await asyncio.sleep(0)
        if text.endswith(HANG):
            await asyncio.Event().wait()
        yield self._completion(prompt, text, "stop")

    @staticmethod
    def _completion(prompt: Prompt, text: str, finish: str | None) -> Completion:
        return Completion(text, finish, None, len(prompt.text), 0, len(text), {"id": "fake"})

    async def score(
        self, prompt: Prompt, continuations: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        await self._enter(prompt, Sampling())
        scored = []
        for text in continuations:
            values = tuple(self.logprob(word) for word in text.split(" "))
            ids = tuple(range(len(values)))
            alone = tuple(-1.0 for _ in values) if unconditional else ()
            scored.append(Scored(text, ids, values, alone))
        return Scores(tuple(scored), len(prompt.text), 0)

    async def select(
        self, prompt: Prompt, choices: Sequence[str], sampling: Sampling
    ) -> Completion:
        await self._enter(prompt, sampling)
        return self._completion(prompt, choices[-1], "stop")

    async def prefetch(self, prefix: str) -> None:
        self.prefetched.append(prefix)

    async def flush_cache(self) -> None:
        self.flushed += 1
