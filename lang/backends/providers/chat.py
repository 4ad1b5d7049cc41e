"""What all providers' back ends have in common: a chat, what its model takes, and how answers are
read. A provider makes the body of a request and asks, whole or in parts.
"""

import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from lang.backends.base import BackendDefaults, Capabilities, Completion, Prompt
from lang.backends.features import refuse_missing
from lang.backends.openai import TokenUsage, chosen, closest, with_choice
from lang.backends.openai_request import check_chat, select_sampling
from lang.backends.reading import Reading
from lang.backends.sampling import Sampling
from lang.backends.schemas.strict import (
    Rules,
    Strict,
    strict_choice,
    strict_pattern,
    strict_schema,
)
from lang.chat_template import ChatTemplate
from lang.errors import UnsupportedError

THINKS = "the model thinks before it answers, and each answer that is left early is paid for"


class Asked(NamedTuple):
    """A request: its parameters that the model takes, by the language's names, its constraint, the
    stops that the provider is sent, and the beginning of the answer, which the prompt has."""

    prompt: Prompt
    max_tokens: int
    given: Mapping[str, Any]
    schema: dict[str, Any] | None
    stops: tuple[str, ...]
    begun: str = ""


class ChatProvider(BackendDefaults):
    """A chat model of a provider. `features` are what it takes, and `rules` what its schemas may
    have. `thinks` says why its thoughts would be paid for twice, if it may have any. A subclass has
    `provider`, its name in errors, and `advice`, what may be done about a parameter that the model
    lacks."""

    provider = ""
    advice = ": if it does, name it in `also`"

    def __init__(
        self, model_name: str, features: frozenset[str], rules: Rules, thinks: str | None = None
    ) -> None:
        self.model_name = model_name
        self.token_usage = TokenUsage()
        self.capabilities = Capabilities(
            chat_only=True,
            images="images" in features,
            constraints="schema" in features,
            enforces=False,
            several="several" in features,
            continues="prefill" in features,
            refuses_speculation=thinks,
        )
        self._features, self._rules = features, rules
        self._template = ChatTemplate()

    async def chat_template(self) -> ChatTemplate:
        """That of the text which people read: the provider has its own."""
        return self._template

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        (answer,) = await self.samples(prompt, sampling, 1)
        return answer

    async def samples(self, prompt: Prompt, sampling: Sampling, count: int) -> list[Completion]:
        asked, reading = self._asked(prompt, sampling)
        begun = time.monotonic()
        found = await self._ask(self._body(asked), count)
        return [reading.whole(self._finished(each, begun)) for each in found]

    async def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Completion]:
        asked, reading = self._asked(prompt, sampling)
        begun = time.monotonic()
        async with aclosing(self._parts(self._body(asked))) as parts:
            async for part in parts:
                if part.finish is not None:
                    yield reading.whole(self._finished(part, begun))
                elif reading.is_over(part.text):
                    yield reading.whole(self.token_usage.add(part))
                    return
                else:
                    try:
                        yield msgspec.structs.replace(part, text=reading.partial(part.text))
                    except GeneratorExit:  # left early: what the provider has counted until then
                        self.token_usage.add(part)
                        raise

    async def select(
        self, prompt: Prompt, choices: Sequence[str], sampling: Sampling
    ) -> Completion:
        """By an enum of the schema, where the model takes one; else the closest choice."""
        asked = self._asking(
            prompt,
            select_sampling(
                choices, sampling, self._features, thinks="reasoning_effort" in self._features
            ),
            strict_choice(choices) if "schema" in self._features else None,
        )
        begun = time.monotonic()
        (found,) = await self._ask(self._body(asked), 1)
        answer = self._finished(found, begun)
        if asked.schema is None:
            return with_choice(answer, closest(answer.text, choices), "closest")
        text = chosen(answer.text)
        if text is None or text not in choices:
            reason = f"the answer {answer.text!r} (finish {answer.finish!r}) is none of them"
            raise UnsupportedError("choices", reason)
        return with_choice(answer, text, "constrained")

    def _asked(self, prompt: Prompt, sampling: Sampling) -> tuple[Asked, Reading]:
        """What to ask for, and how the answer is read. Raises UnsupportedError for what the model
        lacks."""
        strict = self._strict(sampling)
        is_wrapped = strict is not None and not strict.is_plain
        # Stops would be found in the JSON around the value; some providers refuse blank ones.
        sent = () if is_wrapped or "stop" not in self._features else sampling.stop
        sent = tuple(stop for stop in sent if stop.strip())
        here = tuple(stop for stop in sampling.stop if stop not in sent)
        asked = self._asking(prompt, sampling, None if strict is None else strict.schema, sent)
        if strict is not None and prompt.open_text:
            reason = f"{self.provider} constrains whole answers, and this one begins "
            raise UnsupportedError("gen", reason + repr(prompt.open_text))
        # A provider may trim blanks at the prompt's end, and write them again.
        return asked, Reading(strict, here, prompt.open_text[len(asked.begun) :])

    def _asking(
        self,
        prompt: Prompt,
        sampling: Sampling,
        schema: dict[str, Any] | None,
        stops: tuple[str, ...] = (),
    ) -> Asked:
        check_chat(prompt, self._template, continues=self.capabilities.continues)
        if not self.capabilities.images and prompt.images:
            raise UnsupportedError("image", f"{self.model_name} takes text only{self.advice}")
        who = f"{self.provider}'s {self.model_name}"
        given = refuse_missing(sampling, self._features, who, self.advice)
        begun = prompt.open_text.rstrip()
        return Asked(prompt, sampling.max_tokens, given, schema, stops, begun)

    def _strict(self, sampling: Sampling) -> Strict | None:
        """The constraint as the provider takes it."""
        if sampling.ebnf is not None:
            raise UnsupportedError("ebnf", f"{self.provider} has no grammars")
        if sampling.regex is not None:
            return strict_pattern(sampling.regex, self._rules)
        if sampling.json_schema is not None:
            return strict_schema(sampling.json_schema, self._rules)
        return None

    def _finished(self, answer: Completion, begun: float) -> Completion:
        self.token_usage.add(answer)
        meta = answer.meta | {"e2e_latency": time.monotonic() - begun}
        return msgspec.structs.replace(answer, meta=meta)

    @abstractmethod
    def _body(self, asked: Asked) -> dict[str, Any]:
        """The request in the provider's form."""

    @abstractmethod
    async def _ask(self, body: dict[str, Any], count: int) -> list[Completion]:
        """`count` whole answers. Raises RequestError, RefusalError, FilterError."""

    @abstractmethod
    def _parts(self, body: dict[str, Any]) -> AsyncGenerator[Completion, None]:
        """The answer as it grows; the last part has `finish`. It can be closed."""
