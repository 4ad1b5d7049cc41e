"""What programs extend their states by, besides text: `gen`, `select` and so on.

They check their arguments and return expressions; nothing runs here. Sampling arguments that are
None leave the run's defaults unchanged. Positional order is SGLang's.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lang.backends.base import Image
from lang.backends.sampling import CONSTRAINTS, Sampling
from lang.generation.choices import ChoicesSamplingMethod, token_length_normalized
from lang.generation.constrained import RETURN, ReturnGen, chosen, of_grammar, of_predicate, of_type
from lang.generation.gens import Gen, Reader, SeparateReasoning
from lang.generation.selects import Score, Select
from lang.run import marks
from lang.run.ir import Expr, Media
from lang.values.grammar import Grammar
from lang.values.structured import is_plain, named_groups_of, schema_of, text_schema_of
from srt.patterns.stop_search import PatternSearch

_OPENED_REASONING = {"deepseek-r1": True, "qwen3-thinking": True}
_TAGGED_REASONING = {"deepseek-v3": False, "glm45": False, "qwen3": False, "think": False}
_COMBINED = ({"where", "type"}, {"where", "regex"})
_SAMPLING = frozenset(Sampling.__struct_fields__)
REASONING = _OPENED_REASONING | _TAGGED_REASONING


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | None = None,
    *,
    schema: Any = None,
    type: Any = None,
    where: Callable[[Any], Any] | None = None,
    grammar: Grammar | None = None,
    ebnf: str | None = None,
    seed: int | None = None,
    logit_bias: dict[str, float] | None = None,
    repetition_penalty: float | None = None,
    token_healing: bool | None = None,
    timeout_s: float | None = None,
    **others: Any,
) -> Expr:
    """Let the model write, into the variable `name`.

    `choices` makes it a select, which takes only `temperature`, `seed` and `timeout_s` of the other
    arguments. `regex`, `json_schema` (JSON text), `ebnf`, `dtype` and `schema` constrain the
    text. `dtype` is int, float, bool, str, or a type whose values are written as JSON; the text has
    the value as `value`. With `schema` (a dict, or a type) the variable is the value itself, and so
    it is with `type`, which also takes numbers, dates and choices as bare text. `where` is a
    function that makes a predicate of the text, and `grammar` is made of `sgl.g`. `n`
    above 1 gives a list; the text continues with its first. `timeout_s` limits this gen; `others`
    are more fields of `lang.backends.sampling.Sampling`. Raises re.error for a wrong pattern,
    TypeError for a `dtype` or `schema` that is not a type or an argument with an expression in it,
    ValueError for arguments that contradict each other and for patterns that cannot be found in
    linear time.
    """
    given = {
        key: value
        for key, value in (locals() | others).items()
        if value is not None and key in _SAMPLING
    }
    if unknown := sorted(others.keys() - _SAMPLING):
        raise TypeError(f"gen() has no argument {unknown[0]!r}")
    marks.refuse(name=name, schema=schema, **given)
    own = _given(dtype=dtype, schema=schema, type=type, where=where, grammar=grammar)
    if choices is not None:
        return chosen(name, choices, choices_method, given | dict.fromkeys(own, True))
    if choices_method is not None:
        raise ValueError("choices_method needs choices")
    _check_own(own, given)
    _check_stops(given)
    if grammar is not None:
        return of_grammar(name, given, grammar)
    if type is not None:
        return of_type(name, given, type, where)
    if where is not None:
        return of_predicate(name, given, where)
    if name == RETURN and not own and given.keys().isdisjoint(CONSTRAINTS):
        return ReturnGen(name, given)
    return _gen(name, given, dtype, schema)


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _check_own(own: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse constraints that cannot be combined, by their names."""
    constraints = [*own, *(key for key in CONSTRAINTS if key in given)]
    for name in ("type", "grammar", "where"):
        others = [each for each in constraints if {name, each} not in _COMBINED and each != name]
        if name in own and others:
            raise ValueError(f"{name} and {', '.join(others)} exclude each other")


def _check_stops(given: dict[str, Any]) -> None:
    found = given.get("stop_regex", ())
    patterns = (found,) if isinstance(found, str) else tuple(found)
    for pattern in patterns:
        re.compile(pattern)
    PatternSearch(patterns)  # refuses what it cannot find, and keeps its automaton


def _gen(name: str | None, given: dict[str, Any], dtype: Any, schema: Any) -> Gen:
    """Check arguments that depend on each other."""
    convert = None
    if schema is not None:
        if "json_schema" in given:
            raise ValueError("schema and json_schema exclude each other")
        given["json_schema"], convert = schema_of(schema)
    constraints = [key for key in CONSTRAINTS if key in given]
    if len(constraints) > 1:
        raise ValueError(f"{' and '.join(constraints)} exclude each other")
    groups = named_groups_of(given["regex"]) if "regex" in given else None
    if dtype is not None and constraints:
        if constraints != ["regex"]:
            raise ValueError(f"dtype and {constraints[0]} exclude each other")
        warnings.warn("dtype wins over regex", stacklevel=3)
        del given["regex"]
        groups = None
    if dtype is not None and not is_plain(dtype):
        given["json_schema"], convert = text_schema_of(dtype)
        dtype = None
    asked = None if dtype is None else "dtype"
    return Gen(name, given, Reader(dtype, convert, groups), asked=asked)


def gen_int(name: str | None = None, max_tokens: int | None = None, **kwargs: Any) -> Expr:
    """A gen of an integer, with gen's arguments; `s[name].value` is the int."""
    return gen(name, max_tokens, dtype=int, **kwargs)


def gen_string(name: str | None = None, max_tokens: int | None = None, **kwargs: Any) -> Expr:
    """A gen of a quoted text, with gen's arguments; `s[name].value` is the text in the quotes."""
    return gen(name, max_tokens, dtype=str, **kwargs)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> Expr:
    """Append the best of `choices`, as `choices_method` measures them.

    `get_meta_info(name)` has every choice's log-probabilities and `probabilities`.
    """
    if choices is None:
        raise ValueError("choices must be given")
    marks.refuse(name=name)
    return Select(name, choices, {"temperature": temperature}, choices_method)


def score(name: str, continuations: Sequence[str]) -> Expr:
    """Write the log-probability that each text comes next into `name`; append nothing."""
    return Score(name, continuations, normalised=False)


def distribution(name: str, choices: Sequence[str]) -> Expr:
    """Write the probability of each text, given that one of them comes next, into `name`."""
    return Score(name, choices, normalised=True)


def image(expr: str | bytes | Path) -> Expr:
    """An image, given as a path or its bytes. Raises OSError for a file that cannot be read."""
    return Media(Image(_bytes(expr)))


def video(path: str | bytes | Path, num_frames: int) -> Expr:
    """`num_frames` frames of a video, given as a path or its bytes."""
    if num_frames < 1:
        raise ValueError(f"num_frames must be at least 1, not {num_frames}")
    return Media(Image(_bytes(path), "video", num_frames))


def _bytes(given: str | bytes | Path) -> bytes:
    return given if isinstance(given, bytes) else Path(given).read_bytes()


def separate_reasoning(expr: Expr, model_type: str = "think") -> Expr:
    """Perform `expr`; its gens' reasoning goes into `NAME_reasoning_content`, not into the text.

    `model_type` is one of `REASONING`: whether the model opens its reasoning with a tag.
    """
    if model_type not in REASONING:
        raise ValueError(f"model_type must be one of {sorted(REASONING)}, not {model_type!r}")
    return SeparateReasoning(expr, REASONING[model_type])
