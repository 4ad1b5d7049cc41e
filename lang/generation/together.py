"""Several samples of one prompt that a back end gives to one request."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec

from lang.backends.base import Backend, Completion, Prompt
from lang.backends.sampling import Sampling


class Together:
    """The samples of a gen, each of which is waited for by itself: the first asks for all."""

    def __init__(self, backend: Backend, prompt: Prompt, sampling: Sampling) -> None:
        self._backend, self._prompt = backend, prompt
        self._count = sampling.n
        self._sampling = msgspec.structs.replace(sampling, n=1)
        self._answers: asyncio.Future[list[Completion]] | None = None

    def each(self) -> Iterator[Coroutine[Any, Any, Completion]]:
        """A coroutine for each sample; all of them must run."""
        return (self._sample(i) for i in range(self._count))

    async def _sample(self, index: int) -> Completion:
        if self._answers is not None:
            return (await asyncio.shield(self._answers))[index]
        self._answers = asyncio.get_running_loop().create_future()
        try:
            made = await self._backend.samples(self._prompt, self._sampling, self._count)
        except BaseException:
            self._answers.cancel()  # what the others wait for; this one says why
            raise
        self._answers.set_result(made)
        return made[index]
