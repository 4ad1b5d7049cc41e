"""The facts of an answer besides its text, from where they are counted to all APIs that show them.

A new fact is a field of `AnswerMeta`, and the place that counts it: the scheduler by `Req.count`,
the detokenizer by `Request._meta`. Every API then has it under the field's name as soon as it
differs from its default, unless `_SHOWN` says otherwise.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, convert, defstruct, structs

GENERATE, PROGRAMS, USAGE = "generate", "programs", "usage"  # routes; the last: OpenAI's usage


class DraftCounts(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What speculation did for a request: `verified` steps had drafted tokens, `drafted` in all, of
    which `accepted` were what would have been sampled anyway."""

    verified: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def accept_length(self) -> float:
        """Output tokens per step that verified: the accepted ones, and the one after them."""
        return 1 + self.accepted / self.verified if self.verified else 1.0


NO_DRAFTS = DraftCounts()


class PrefixEnd(Struct, frozen=True, omit_defaults=True):
    """Where a prompt leaves what is cached: after so many tokens, at that character of its text, as
    the template wrote it, which goes on with `text` (40 characters at most). `other` is how what is
    cached goes on there; only admins get it."""

    token: int
    character: int
    text: str
    other: str | UnsetType = UNSET


class PrefixIds(Struct, frozen=True, array_like=True):
    """Packed ids around the place where a prompt leaves what is cached, after `length` tokens:
    those of the prompt from its beginning to somewhat behind it, and `other`, how what is cached
    goes on there (None: nobody may know)."""

    length: int
    prompt: bytes
    other: bytes | None = None


class AnswerMeta(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What is known of an answer so far. Counts are totals; times are known when it has ended, and
    those of what did not happen are None. After the loss of a scheduler, counts of steps are those
    of the last one."""

    prompt_tokens: Annotated[int, Meta(description="Tokens of the prompt.")] = 0
    cached_tokens: Annotated[
        int, Meta(description="Tokens of the prompt that were in the prefix cache.")
    ] = 0
    completion_tokens: Annotated[int, Meta(description="Tokens of the output.")] = 0
    media_tokens: Annotated[
        int, Meta(description="Tokens of the prompt that stand for pictures and videos.")
    ] = 0
    healed_tokens: Annotated[
        int, Meta(description="Last tokens of the prompt whose place the first output ids take.")
    ] = 0
    jump_forward_tokens: Annotated[
        int, Meta(description="Output tokens that the constraint forced.")
    ] = 0
    forward_passes: Annotated[
        int, Meta(description="How often the model was asked for a token.")
    ] = 0
    routed_replica: Annotated[int, Meta(description="The replica that served it last.")] = 0
    queued_s: Annotated[
        float | None,
        Meta(description="Seconds from its arrival, prompt read, to its first admission."),
    ] = None
    ttft_s: Annotated[
        float | None, Meta(description="Seconds from its arrival to its first token.")
    ] = None
    decode_s: Annotated[
        float | None, Meta(description="Seconds from its first token to its end.")
    ] = None
    verified: Annotated[int, Meta(description="Steps that verified drafted tokens.")] = 0
    drafted: Annotated[int, Meta(description="Drafted tokens that were verified.")] = 0
    accepted: Annotated[int, Meta(description="Drafted tokens that were accepted.")] = 0
    retractions: Annotated[
        int,
        Meta(description="How often its last scheduler moved it out of memory and began anew."),
    ] = 0
    token_origins: Annotated[
        str, Meta(description="For each output id a letter: where it is from, if asked for.")
    ] = ""
    prefix: Annotated[
        PrefixEnd | None, Meta(description="Where the prompt leaves what is cached, if asked for.")
    ] = None
    hints_lowered: Annotated[
        bool,
        Meta(description="Whether it counted as `throughput`: its caller's share was taken."),
    ] = False

    @property
    def drafts(self) -> DraftCounts:
        """What speculation did."""
        return DraftCounts(self.verified, self.drafted, self.accepted)

    @property
    def accept_length(self) -> float:
        """Output tokens, on average, of a step that verified drafted tokens."""
        return self.drafts.accept_length


NO_META = AnswerMeta()


def facts(answer: AnswerMeta) -> dict[str, Any]:
    """The facts of an answer that has more than these."""
    return {name: getattr(answer, name) for name in AnswerMeta.__struct_fields__}


def updated(meta: AnswerMeta, by: AnswerMeta) -> AnswerMeta:
    """`meta` with what `by` knows: its fields that differ from their defaults."""
    known = zip(AnswerMeta.__struct_fields__, structs.astuple(by), _DEFAULTS, strict=True)
    return structs.replace(meta, **{name: value for name, value, unset in known if value != unset})


class _Name(NamedTuple):
    """How an API shows a fact: under `name`, `always` or while the field `when` (by default the
    fact itself) differs from its default."""

    name: str
    always: bool = False
    when: str = ""


_ALWAYS, _HIDDEN = _Name("", always=True), None
_DRAFTS = {
    "verified": _Name("spec_verify_ct"),
    "accept_length": _Name("spec_accept_length", when="verified"),
    "drafted": _Name("spec_draft_token_num", when="verified"),
    "accepted": _Name("spec_accept_token_num", when="verified"),
}
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "jump_forward_tokens")
# Where an API differs from the rule.
_SHOWN: dict[str, dict[str, _Name | None]] = {
    GENERATE: {
        **dict.fromkeys((*_COUNTS, "forward_passes", "healed_tokens", "routed_replica"), _ALWAYS),
        **_DRAFTS,
    },
    PROGRAMS: {
        **dict.fromkeys((*_COUNTS, "forward_passes"), _ALWAYS),
        **dict.fromkeys(("healed_tokens", "routed_replica", "media_tokens"), _HIDDEN),
        **dict.fromkeys(("queued_s", "ttft_s", "decode_s", "prefix"), _HIDDEN),
        **_DRAFTS,
    },
    # Its own fields have the prompt's facts and the drafts.
    USAGE: {
        **dict.fromkeys((*_COUNTS, "forward_passes", "healed_tokens", "routed_replica"), _HIDDEN),
        **dict.fromkeys(("media_tokens", "queued_s", "ttft_s", "decode_s"), _HIDDEN),
        **dict.fromkeys(("verified", "drafted", "accepted", "token_origins", "prefix"), _HIDDEN),
        "hints_lowered": _HIDDEN,
    },
}


class _Entry(NamedTuple):
    fact: str
    name: str
    when: str  # a fact
    absent: Any  # the value of `when` without which it is left out; UNSET: it never is


def _table(api: str) -> list[_Entry]:
    defaults = dict(zip(AnswerMeta.__struct_fields__, _DEFAULTS, strict=True))
    rules = _SHOWN[api]
    facts = [*defaults, *(fact for fact in rules if fact not in defaults)]
    found = []
    for fact in facts:
        rule = rules.get(fact, _Name(fact))
        if rule is not None:
            when = rule.when or fact
            absent = UNSET if rule.always else defaults[when]
            found.append(_Entry(fact, rule.name or fact, when, absent))
    return found


_DEFAULTS = AnswerMeta.__struct_defaults__
_TYPES = {field.name: field.type for field in structs.fields(AnswerMeta)}
_TABLES = {api: _table(api) for api in _SHOWN}


def meta_of(meta: AnswerMeta, api: str) -> dict[str, Any]:
    """The facts of an answer that an API shows, by its names."""
    return {
        entry.name: getattr(meta, entry.fact)
        for entry in _TABLES[api]
        if entry.absent is UNSET or getattr(meta, entry.when) != entry.absent
    }


def facts_of(payload: Mapping[str, Any], api: str) -> dict[str, Any]:
    """The fields of `AnswerMeta` in what `meta_of` has written."""
    known = AnswerMeta.__struct_fields__
    return {
        entry.fact: convert(payload[entry.name], _TYPES[entry.fact])
        for entry in _TABLES[api]
        if entry.fact in known and entry.name in payload
    }


def meta_struct(api: str) -> type[Struct]:
    """The base of an API's struct: it has a field for each fact that `meta_of` may give."""
    types = {field.name: field for field in structs.fields(AnswerMeta)}
    found: list[Any] = []
    for entry in _TABLES[api]:
        kind = types[entry.fact].type if entry.fact in types else float
        always = entry.absent is UNSET
        found.append((entry.name, kind) if always else (entry.name, kind | UnsetType, UNSET))
    return defstruct("AnswerFacts", found, frozen=True, kw_only=True)
