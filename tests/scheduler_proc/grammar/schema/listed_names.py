"""Which names a schema lists for the objects of a valid instance, found by jsonschema: what the
rule of closed objects is compared with."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]

Errors = Iterator[Any]
_OPENERS = ("additionalProperties", "unevaluatedProperties")
_DEPENDENT = ("dependentRequired", "dependencies")


class _Names:
    """By the ids of an instance's objects: the names that the schemas which hold for the object
    list, and the objects about whose other names one says something."""

    def __init__(self, validator: Any) -> None:
        self._listed: dict[int, frozenset[str]] = {}
        self._closed: frozenset[int] = frozenset()
        self._open: frozenset[int] = frozenset()
        keywords: dict[str, Callable[..., Errors]] = {
            "anyOf": self._any,
            "oneOf": self._one,
            **{name: self._noting(validator, name) for name in ("properties", "required")},
            **{name: self._noting(validator, name) for name in ("patternProperties", *_OPENERS)},
            **{name: self._noting(validator, name) for name in _DEPENDENT},
            "not": self._not,
            "if": self._conditional,
        }
        known = {name: rule for name, rule in keywords.items() if name in validator.VALIDATORS}
        self._validator = jsonschema.validators.extend(validator, known)

    def only_listed(self, schema: Any, value: Any) -> bool:
        """Whether a valid instance has listed names only, where its objects are to be closed."""
        for _ in self._validator(schema).iter_errors(value):
            pass
        return self._is_listed(value)

    def _is_listed(self, value: Any) -> bool:
        if isinstance(value, list):
            return all(map(self._is_listed, value))
        if not isinstance(value, dict):
            return True
        is_closed = id(value) in self._closed - self._open
        names_fit = not is_closed or value.keys() <= self._listed[id(value)]
        return names_fit and all(map(self._is_listed, value.values()))

    def _noting(self, validator: Any, name: str) -> Callable[..., Errors]:
        rule = validator.VALIDATORS.get(name)

        def noting(validator: Any, given: Any, instance: Any, schema: Any) -> Errors:
            if isinstance(instance, dict):
                self._note(name, given, instance)
            yield from rule(validator, given, instance, schema)

        return noting

    def _note(self, name: str, given: Any, instance: dict[str, Any]) -> None:
        key, names = id(instance), frozenset[str]()
        if name in _OPENERS:
            self._open |= {key}
            return
        if name == "patternProperties":
            names = frozenset(n for n in instance if any(re.search(p, n) for p in given))
        elif name in _DEPENDENT:
            lists = [wanted for n, wanted in given.items() if n in instance]
            names = frozenset(n for wanted in lists if isinstance(wanted, list) for n in wanted)
        elif isinstance(given, dict | list):  # not the `required` of draft 3
            names = frozenset(given)
            self._closed |= {key} if name == "properties" else set()
        self._listed[key] = self._listed.get(key, frozenset()) | names

    def _branch(self, validator: Any, instance: Any, schema: Any) -> bool:
        """Whether a schema holds; if not, nothing in it counts."""
        before = dict(self._listed), self._closed, self._open
        holds = not [*validator.descend(instance, schema)]
        if not holds:
            self._listed, self._closed, self._open = before
        return holds

    def _any(self, validator: Any, given: Any, instance: Any, schema: Any) -> Errors:
        if not sum(self._branch(validator, instance, branch) for branch in given):
            yield jsonschema.ValidationError("no branch holds")

    def _one(self, validator: Any, given: Any, instance: Any, schema: Any) -> Errors:
        if sum(self._branch(validator, instance, branch) for branch in given) != 1:
            yield jsonschema.ValidationError("not one branch holds")

    def _conditional(self, validator: Any, given: Any, instance: Any, schema: Any) -> Errors:
        then = "then" if self._branch(validator, instance, given) else "else"
        if then in schema:
            yield from validator.descend(instance, schema[then])

    def _not(self, validator: Any, given: Any, instance: Any, schema: Any) -> Errors:
        if self._branch(validator, instance, given):
            yield jsonschema.ValidationError("it holds")


def only_listed(schema: Any, value: Any) -> bool:
    """Whether the closed schema must allow this valid instance of the open one."""
    newest = jsonschema.Draft202012Validator
    return _Names(jsonschema.validators.validator_for(schema, newest)).only_listed(schema, value)
