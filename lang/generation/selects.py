"""select, score and distribution: how likely the model finds given texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from lang.generation.calls import answered, defaults_of, meta_of, note, note_counts, recorded
from lang.generation.choices import ChoicesSamplingMethod, counts, decide, distribution
from lang.run import marks
from lang.run.ir import Slots, Writer
from lang.run.stream import Stream

MAX_SELECT_TEMPERATURE = 1e-5


class Select(Writer):
    """Appends the best of `choices` by `method`; `given` are its temperature and time limit. The
    variable is its text, or what `values` has for that."""

    def __init__(
        self,
        name: str | None,
        choices: Sequence[str],
        given: dict[str, Any],
        method: ChoicesSamplingMethod,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.choices = _texts("choices", choices)
        self.given = given
        self.method = method
        self.values = values

    def value_of_text(self, text: str) -> Any:
        """The variable's value for a choice."""
        return text if self.values is None else self.values[text]

    @property
    def num_steps(self) -> int:
        return 1

    async def perform(self, stream: Stream, slots: Slots) -> None:
        (slot,) = slots
        backend, prompt = stream.program.backend, stream.transcript.prompt()
        sampling = defaults_of(stream).merged({**self.given, "n": 1})
        asked_for = {"choices": self.choices, "method": type(self.method).__name__}
        with recorded(stream, "select", slot.name, asked_for) as call:
            if backend.capabilities.score:
                if (sampling.temperature or 0.0) > MAX_SELECT_TEMPERATURE:
                    raise ValueError("select is exact: its temperature must be 0")
                unconditional = self.method.requires_unconditional_logprobs
                (scores,) = await answered(
                    stream,
                    call,
                    sampling.timeout_s,
                    lambda: [backend.score(prompt, self.choices, unconditional=unconditional)],
                )
                decision = decide(self.method, scores)
                text = decision.decision
                slot.meta = {"text": text, **decision.meta_info}
                note_counts(call, slot.meta, text)
            else:
                completions = await answered(
                    stream,
                    call,
                    sampling.timeout_s,
                    lambda: [backend.select(prompt, self.choices, sampling)],
                )
                note(call, completions)
                text, slot.meta = completions[0].text, meta_of(completions[0])
            call.text = text
        stream.grow(slot, text)
        slot.settle(self.value_of_text(text))


class Score(Writer):
    """Writes a variable: log-probabilities of, or a distribution over, `texts`. Appends nothing."""

    def __init__(self, name: str | None, texts: Sequence[str], normalised: bool) -> None:
        self.name = name
        self.texts = _texts("choices" if normalised else "continuations", texts)
        self.normalised = normalised

    @property
    def num_steps(self) -> int:
        return 1

    async def perform(self, stream: Stream, slots: Slots) -> None:
        (slot,) = slots
        program = stream.program
        with recorded(stream, "score", slot.name, {"texts": self.texts}) as call:
            (scores,) = await answered(
                stream,
                call,
                program.defaults.timeout_s,
                lambda: [program.backend.score(stream.transcript.prompt(), self.texts)],
            )
            tokens = counts(scores)
            totals = {each.text: each.total for each in scores.continuations}
            note_counts(call, tokens, totals)
        probabilities = distribution(scores.continuations)
        logprobs = {each.text: each.logprobs for each in scores.continuations}
        slot.meta = {**tokens, "token_logprobs": logprobs, "probabilities": probabilities}
        slot.settle(probabilities if self.normalised else totals)


def _texts(param: str, texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{param} must be a list of texts")
    if any(map(marks.has_mark, texts)):
        raise TypeError(f"{param} must be a list of texts without expressions in them")
    if not texts or not all(texts):
        raise ValueError(f"{param} must hold at least one text, and no empty one")
    return tuple(texts)
