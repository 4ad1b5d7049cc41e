"""What an output must match: one constraint of a request, as it is sent to the compiler, the names
of grammars that need no compiler, and the error for bad constraints."""

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

ConstraintKind = Literal["regex", "json_schema", "ebnf", "structural_tag", "choices"]
Whitespace = Literal["compact", "free"]

# Multiples of a compilation's limit of CPU time: how long it may wait for its turn, and how long it
# may then take by the clock.
COMPILE_QUEUE_FACTOR = 2.0
COMPILE_WALL_FACTOR = 10.0
COMPILE_WAIT_FACTOR = COMPILE_QUEUE_FACTOR + COMPILE_WALL_FACTOR

# The fields of SamplingParams that hold a constraint; their names are the kinds.
CONSTRAINT_KINDS: tuple[ConstraintKind, ...] = (
    "regex",
    "json_schema",
    "ebnf",
    "structural_tag",
    "choices",
)


class GrammarError(ValueError):
    """A constraint or pattern that cannot be compiled, or a grammar that cannot go on.

    The message is for the user: it says what is wrong and, in a pattern, at which position. In a
    structural tag it is about `at`, a path such as `format.tags[0].begin`.
    """

    def __init__(self, message: str, at: str = "") -> None:
        super().__init__(f"{at}: {message}" if at else message)
        self.message, self.at = message, at


class Constraint(Struct, frozen=True, array_like=True, omit_defaults=True):
    """`source` is a pattern, a grammar, or JSON text: of a schema, a structural tag, or a list of
    strings (the choices).

    `whitespace` says what JSON may have between its tokens: nothing, or any blanks. With
    `after`, the output is free up to and including the first occurrence of that text, and the
    constraint holds from there on; with `opener` too, this is so only where the output begins with
    that text, and any other output matches at once. With `before`, the output begins with that
    text, and all of this applies to what follows it. With `closed`, objects that list properties
    have no others unless the schema says so: it is the `x-closed` of schemas without that keyword.
    """

    kind: ConstraintKind
    source: str
    whitespace: Whitespace = "compact"
    after: str = ""
    before: str = ""
    closed: bool = False
    opener: str = ""


def artefact_key(constraint: Constraint, naming: str) -> str:
    """The name of a constraint's compiled grammar: a hash of everything that it depends on.
    `naming` stands for all of that except the constraint; the compiler provides it."""
    content = msgspec.msgpack.encode((naming, constraint))
    return hashlib.sha256(content).hexdigest()


class Capture(Struct, frozen=True):
    """A part of an answer that its constraint has a name for: text[start:end], in characters."""

    name: str
    start: int
    end: int
    text: str


def may_capture(constraint: Constraint) -> bool:
    """Whether the constraint may have names for parts of an answer; a quick check."""
    sign = {"regex": "(?P<", "ebnf": "capture"}.get(constraint.kind)
    return sign is not None and sign in constraint.source


_FREE_KEY = "free-"


def free_key(before: str) -> str:
    """The key of a grammar that needs no compiler: `before` first, then any text."""
    return _FREE_KEY + before.encode().hex()


def free_key_text(key: str) -> bytes | None:
    """The text that `free_key` made this key of, in UTF-8; None for the keys of artefacts."""
    return bytes.fromhex(key.removeprefix(_FREE_KEY)) if key.startswith(_FREE_KEY) else None
