"""`@semantic_function`: a function whose docstring is the prompt, as Parrot has it.

@semantic_function
def joke(topic: Input, joke: Output(max_tokens=32)):
    '''Tell a joke about {{topic}}: {{joke}}'''
"""

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from lang.backends.runtime import params_of
from lang.backends.sampling import PLAIN
from lang.remote.session import ProgramVar, Reading, Session, perf_of, session_of
from srt.wire.programs import Call, Guard, Objective, Perf, Segment, Text
from srt.wire.programs import Input as InputSegment
from srt.wire.programs import Output as OutputSegment
from srt.wire.sampling import SamplingParams

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Input:
    """Annotates a parameter whose value is a text or a variable of the session."""


class Output:
    """Annotates a parameter that the model writes; arguments are those of `gen`."""

    def __init__(self, **sampling: Any) -> None:
        self.params = SamplingParams(**params_of(PLAIN.merged(sampling)))


class SemanticFunction:
    """Calling it inside a session submits one call, and returns its output, or a tuple of them."""

    def __init__(
        self, func: Callable[..., Any], formatter: Callable[[str], str] | None = None
    ) -> None:
        signature = inspect.signature(func)
        self.__name__, self.__doc__ = func.__name__, func.__doc__
        if signature.return_annotation is not inspect.Signature.empty:
            raise TypeError(f"{func.__name__}: its outputs are parameters: annotate no return")
        if not func.__doc__:
            raise TypeError(f"{func.__name__}: the docstring is the prompt, and there is none")
        kinds = inspect.get_annotations(func, eval_str=True)
        self._outputs = {
            name: kind if isinstance(kind, Output) else Output()
            for name, kind in kinds.items()
            if isinstance(kind, Output) or kind is Output
        }
        others = [each for name, each in signature.parameters.items() if name not in self._outputs]
        self._signature = signature.replace(parameters=others)
        template = textwrap.dedent(func.__doc__).strip()
        self._template = template if formatter is None else formatter(template)
        placed = _PLACEHOLDER.findall(self._template)
        for name in [*self._outputs, *self._signature.parameters]:
            if name not in placed:
                raise TypeError(f"{func.__name__}: the docstring has no {{{{{name}}}}}")
        for name in placed:
            if name not in signature.parameters:
                raise TypeError(f"{func.__name__}: the docstring names {name!r}: no parameter")
            if name in self._outputs and placed.count(name) > 1:
                raise TypeError(f"{func.__name__}: the output {name!r} is there twice")

    def __call__(
        self,
        *args: Any,
        session: Session | None = None,
        when: Guard | None = None,
        retries: int = 2,
        perf: Objective | Perf | None = None,
        **kwargs: Any,
    ) -> Any:
        """Submit it. `when` is a condition, without which its outputs are skipped; gets that do not
        say what they want have them made for `perf`. ValueError if that is nothing known."""
        app, wanted = session_of(session), perf_of(perf)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        reading = Reading(perf=wanted)
        made = {name: app.declare(f"{self.__name__}.{name}", reading) for name in self._outputs}
        segments: list[Segment] = []
        end = 0
        for found in _PLACEHOLDER.finditer(self._template):
            if found.start() > end:
                segments.append(Text(self._template[end : found.start()]))
            segments.append(self._segment(app, found[1], bound.arguments, made))
            end = found.end()
        while not isinstance(segments[-1], OutputSegment):
            segments.pop()
        call = Call(segments, when=when, retries=retries, name=self.__name__, perf=wanted)
        app.add_call(call)
        outputs = [*made.values()]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _segment(
        self, app: Session, name: str, values: dict[str, Any], made: dict[str, ProgramVar]
    ) -> Segment:
        if name in made:
            return OutputSegment(made[name].name, self._outputs[name].params)
        value = values[name]
        if isinstance(value, ProgramVar):
            app.check(value)
            return InputSegment(value.name)
        return Text(str(value), literal=True)


def semantic_function(
    func: Callable[..., Any] | None = None, *, formatter: Callable[[str], str] | None = None
) -> Any:
    """Make a semantic function of a function without a body. `formatter` changes the prompt before
    it is used. Used bare or with arguments."""
    if func is not None:
        return SemanticFunction(func, formatter)
    return lambda given: SemanticFunction(given, formatter)
