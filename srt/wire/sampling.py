"""Sampling parameters as they travel on the wire, and the only place that checks their values.

A parameter is one annotated field: its type, what it means, and the rule for its values. Each API's
body inherits `CommonSampling`, so that a new one of its fields is known to all routes and clients.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct

from srt.wire.constraint import CONSTRAINT_KINDS, Constraint, ConstraintKind, Whitespace
from srt.wire.errors import RequestError

MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARS = 1024
MAX_OPENER_CHARS = 64  # an automaton may have to follow the constraint beside each of them
MAX_STOP_TOKEN_IDS = 256
MAX_CONSTRAINT_CHARS = 512 * 1024
MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1
MAX_SIGMAS = 100
_WORD = 2**64 - 1
MAX_SAMPLES = 128  # of one prompt
MAX_STOP_REGEXES = 32
MAX_STOP_REGEX_CHARS = 256
MAX_BIASED_TOKENS = 4096
MAX_LOGIT_BIAS = 1e4
# Executors compute in float32: much less would be 0 there, or make every logit infinite.
MIN_REPETITION_PENALTY = 1e-6
MAX_ALLOWED_IDS = 2**20  # over all samples, each with ids of its own
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
GREEDY_TEMPERATURE = 1e-6


JumpForward = Literal["canonical", "off"]
Speculative = Literal["auto", "off"]
Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]  # as many as a message can carry


class Rule(NamedTuple):
    """The rule for a field's value, unless that is None, and its text. Decoders do not check
    rules: a wrong value arrives, and is refused with its field's name."""

    holds: Callable[[Any], bool]
    words: str


def _between(low: float, high: float) -> Rule:
    return Rule(lambda value: low <= value <= high, f"must be between {low:g} and {high:g}")


def _texts(count: int, chars: int) -> Rule:
    return Rule(
        lambda texts: (
            not texts or (len(texts) <= count and all(0 < len(text) <= chars for text in texts))
        ),
        f"takes at most {count} texts of 1 to {chars} characters each",
    )


def _at_most(count: int) -> Rule:
    return Rule(lambda values: len(values) <= count, f"takes at most {count}")


_COUNT = _between(1, MAX_SAMPLES)
_NOT_NEGATIVE = Rule(lambda value: value >= 0, "must be 0 or more")


class Scoring(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Which log-probabilities a request gets: those of the output's tokens, and of the prompt's
    from position `start` on (-1: none). At each of these positions the `top` most likely tokens
    are added, and those of `ids`."""

    start: int = -1
    top: int = 0
    ids: list[int] = []

    @property
    def has_details(self) -> bool:
        """Whether tokens besides the text's own are asked for."""
        return self.top > 0 or len(self.ids) > 0


class CommonSampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters that have one name and type on all APIs.

    `temperature`, `top_p`, `top_k`, `min_p` and `repetition_penalty` are unset where they are None,
    which is not the same as 1 or -1: the server takes the values of the model's files, or neutral
    ones where these have none (`srt.wire.filled_params`).

    Temperatures up to 1e-6 are greedy. Of `stop_token_ids`, those that the vocabulary does not have
    stop nothing. `jump_forward` says whether what a constraint forces is appended at once, as the
    tokens that the tokenizer makes of it, or sampled token by token. `token_healing` takes the
    prompt's last tokens back if a longer token begins with their text, and lets the model write
    that text again, in these or other tokens; it is not returned. `speculative` says whether tokens
    may be guessed and verified several at a time, as the server is set to; the output is the same.
    With `token_origins` the answer says of each token where it is from, and with `return_prefix`
    where the prompt leaves what is cached. `close` says whether
    constrained output is steered to an end within the limit of tokens; None is
    what the server does by itself.

    Logits are changed in this order, before the temperature: `repetition_penalty` divides the
    positive ones, and multiplies the negative ones, of every token that the prompt or the output
    has; `frequency_penalty` is subtracted once for each time the output has the token,
    `presence_penalty` once if it has it at all; `logit_bias` is added. Then only
    `allowed_token_ids` are left (None: all; the end too must be among them), and no token that
    would complete one of `bad_words` within the output; a request to which nothing is left ends
    with an error. Log-probabilities are those of the logits before all this.

    Of the logits that are left, `top_n_sigma` n keeps those of at least M - n * s, where M is the
    largest and s the standard deviation of all that are left (Tang et al. 2024, arXiv 2411.07641;
    llama.cpp computes the same). The temperature, which would not change this choice, comes next,
    then `top_k`, `top_p` of what `top_k` keeps, and `min_p`.
    """

    temperature: Annotated[
        float | None,
        _between(0, 100),
        Meta(description="Up to 1e-6 is greedy; null is the model's."),
    ] = None
    top_p: Annotated[
        float | None,
        Rule(lambda p: 0.0 < p <= 1.0, "must be in (0, 1]"),
        Meta(description="1 is off; null is the model's."),
    ] = None
    top_k: Annotated[
        Int | None,
        Rule(
            lambda k: k == -1 or 1 <= k <= MAX_TOP_K, "must be -1 (off) or between 1 and 2**31 - 1"
        ),
        Meta(description="-1 is off; null is the model's."),
    ] = None
    min_p: Annotated[
        float | None,
        Rule(lambda p: 0.0 <= p <= 1.0, "must be in [0, 1]"),
        Meta(description="0 is off; null is the model's."),
    ] = None
    top_n_sigma: Annotated[
        float,
        _between(-1, MAX_SIGMAS),
        Meta(
            description="Only logits at most this many standard deviations below the largest are "
            "kept; up to 0 is off."
        ),
    ] = -1.0
    frequency_penalty: Annotated[
        float,
        _between(-2, 2),
        Meta(description="Subtracted from a token's logit for each time it was generated."),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        _between(-2, 2),
        Meta(description="Subtracted once from the logit of each generated token."),
    ] = 0.0
    repetition_penalty: Annotated[
        float | None,
        _between(MIN_REPETITION_PENALTY, 2),
        Meta(
            description="Divides positive logits of all tokens, multiplies negative ones; null is "
            "the model's."
        ),
    ] = None
    logit_bias: Annotated[
        dict[Int, float],
        _at_most(MAX_BIASED_TOKENS),
        Rule(
            lambda biases: (
                not biases or all(abs(bias) <= MAX_LOGIT_BIAS for bias in biases.values())
            ),
            f"values must be between -{MAX_LOGIT_BIAS:g} and {MAX_LOGIT_BIAS:g}",
        ),
        Meta(description="Token ids, and what is added to their logits."),
    ] = {}
    allowed_token_ids: Annotated[
        list[Int] | None,
        Rule(len, "must not be empty"),
        Meta(description="The only ids that may be generated; null: all."),
    ] = None
    bad_words: Annotated[
        list[str],
        _texts(MAX_BAD_WORDS, MAX_BAD_WORD_CHARS),
        Meta(description="Texts that must not be generated."),
    ] = []
    seed: Annotated[
        Int | None,
        Rule(lambda seed: 0 <= seed <= MAX_SEED, "must be in [0, 2**63)"),
        Meta(description="The same seed draws the same numbers, whatever else is in the batch."),
    ] = None
    stop_token_ids: Annotated[
        list[Int], _at_most(MAX_STOP_TOKEN_IDS), Meta(description="Ids that end the text.")
    ] = []
    ignore_eos: Annotated[bool, Meta(description="Go on after the end token.")] = False
    skip_special_tokens: Annotated[bool, Meta(description="Leave them out of the text.")] = True
    jump_forward: Annotated[
        JumpForward,
        Meta(description='"off" samples forced text token by token instead of appending it.'),
    ] = "canonical"
    token_healing: Annotated[
        bool,
        Meta(description="Take back the prompt's last tokens if a longer one begins with them."),
    ] = False
    speculative: Annotated[
        Speculative,
        Meta(description='"off" guesses no tokens ahead; the output is the same.'),
    ] = "auto"
    token_origins: Annotated[
        bool,
        Meta(
            description="Say of each output token where it is from: s sampled, j forced by the "
            "constraint, d guessed and right, c appended to close the output."
        ),
    ] = False
    return_prefix: Annotated[
        bool,
        Meta(
            description="Say at which token and character the prompt leaves what is cached, with "
            "40 characters of it."
        ),
    ] = False
    close: Annotated[
        bool | None,
        Meta(
            description="Bring constrained output to an end that its constraint allows before the "
            "limit of tokens; null: JSON Schemas, calls that must be made, all as the server is "
            "set."
        ),
    ] = None

    def shared(self) -> dict[str, Any]:
        """These parameters, for a body of another API."""
        return {name: getattr(self, name) for name in CommonSampling.__struct_fields__}


class SamplingParams(CommonSampling, frozen=True, kw_only=True):
    """How to sample one request.

    `max_new_tokens` None means: until the context (or the token pool) is full. `min_new_tokens`
    blocks EOS, stop ids and stop strings until that many tokens were generated. `stop` never
    appears in the returned text. The first match of a `stop_regex` pattern ends the
    output, as a stop string does; with `no_stop_trim` the stop string or match stays in the text.

    At most one of `regex`, `json_schema` (JSON text), `ebnf`, `structural_tag` (JSON text) and
    `choices` constrains the output; see `Constraint` for `json_whitespace`, `constraint_after` and
    `constraint_opener`, and for `disable_additional_properties`, its `closed`; None is the
    server's default.

    With `reveals_prefix`, `return_prefix` also gives what others may have written there.

    `n` is the number of completions of the prompt, which is computed once; sample i > 0 of a
    request with a seed draws the same as a request with `sub_seed(seed, i)`.
    """

    n: Annotated[Int, _COUNT] = 1
    max_new_tokens: Annotated[Int | None, _NOT_NEGATIVE] = 128
    min_new_tokens: Annotated[Int, _NOT_NEGATIVE] = 0
    stop: Annotated[list[str], _texts(MAX_STOP_STRINGS, MAX_STOP_STRING_CHARS)] = []
    stop_regex: Annotated[list[str], _texts(MAX_STOP_REGEXES, MAX_STOP_REGEX_CHARS)] = []
    no_stop_trim: bool = False
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    choices: list[str] | None = None
    json_whitespace: Whitespace = "compact"
    disable_additional_properties: bool | None = None
    constraint_after: Annotated[
        str,
        Rule(
            lambda text: len(text) <= MAX_STOP_STRING_CHARS,
            f"is limited to {MAX_STOP_STRING_CHARS} characters",
        ),
    ] = ""
    constraint_opener: Annotated[
        str,
        Rule(
            lambda text: len(text) <= MAX_OPENER_CHARS,
            f"is limited to {MAX_OPENER_CHARS} characters",
        ),
    ] = ""
    reveals_prefix: bool = False

    @property
    def constraint(self) -> Constraint | None:
        """The constraint that the output must match, if there is one."""
        for kind in CONSTRAINT_KINDS:
            value = getattr(self, kind)
            if value is not None:
                source = msgspec.json.encode(value).decode() if kind == "choices" else value
                closed = self.disable_additional_properties is True
                after, opener = self.constraint_after, self.constraint_opener
                blanks = self.json_whitespace
                return Constraint(kind, source, blanks, after, closed=closed, opener=opener)
        return None

    def check(self, vocab_size: int) -> None:
        """Raise RequestError naming the first field whose value is wrong for this vocabulary."""
        self.check_values()
        least, most = self.min_new_tokens, self.max_new_tokens
        if most is not None and least > most:
            reason = f" must not exceed max_new_tokens ({most})"
            raise RequestError(reason, at="min_new_tokens")
        self._check_tokens(vocab_size)
        self._check_constraint()

    def check_values(self) -> None:
        """Raise RequestError naming the first field whose value breaks its own rule."""
        for name, default, (holds, words) in _RULES:
            value = getattr(self, name)
            if value is not default and value is not None and not holds(value):
                raise RequestError(f" {words}", at=name)

    def check_count(self) -> None:
        """Raise RequestError if `n` breaks its rule."""
        _check(_COUNT.holds(self.n), "n", _COUNT.words)

    def _check_tokens(self, vocab_size: int) -> None:
        """Check the fields that change single tokens' logits."""
        known = range(vocab_size)
        if self.logit_bias:
            are_known = all(token in known for token in self.logit_bias)
            _check(are_known, "logit_bias", f"tokens must be in [0, {vocab_size})")
        ids, name = self.allowed_token_ids, "allowed_token_ids"
        if ids is None:
            return
        _check(len(ids) <= vocab_size, name, f"takes at most {vocab_size} ids")
        limit = f"times n takes at most {MAX_ALLOWED_IDS} ids"
        _check(self.n * len(ids) <= MAX_ALLOWED_IDS, name, limit)
        _check(all(i in known for i in ids), name, f"must be in [0, {vocab_size})")

    def _check_constraint(self) -> None:
        if self.constraint_opener:
            _check(self.constraint_after != "", "constraint_opener", "needs constraint_after")
        given: list[tuple[ConstraintKind, Any]] = [
            (kind, getattr(self, kind))
            for kind in CONSTRAINT_KINDS
            if getattr(self, kind) is not None
        ]
        if not given:
            _check(self.constraint_after == "", "constraint_after", "needs a constraint")
            _check(self.json_whitespace == "compact", "json_whitespace", "needs a constraint")
            _check(not self.close, "close", "needs a constraint")
            name = "disable_additional_properties"
            _check(not self.disable_additional_properties, name, "needs a constraint")
            return
        kind, value = given[-1]
        _check(len(given) == 1, kind, f"cannot be combined with {given[0][0]}")
        _check(len(value) > 0, kind, "must not be empty")
        size = sum(map(len, value)) if kind == "choices" else len(value)
        limit = f"is limited to {MAX_CONSTRAINT_CHARS} characters, not {size}"
        _check(size <= MAX_CONSTRAINT_CHARS, kind, limit)


def rules_of(struct: type[Struct]) -> Iterator[tuple[str, Rule]]:
    """The rules of all fields, by name."""
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for note in getattr(hint, "__metadata__", ()):
            if isinstance(note, Rule):
                yield name, note


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
_RULES = tuple((name, _DEFAULTS[name], rule) for name, rule in rules_of(SamplingParams))


def _check(ok: bool, param: str, rule: str) -> None:
    if not ok:
        raise RequestError(f" {rule}", at=param)


def sub_seed(seed: int, sample: int) -> int:
    """The seed of sample `sample` of a request: its own for sample 0, else 63 bits of both
    (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    if sample == 0:
        return seed
    z = (seed + sample * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return (z ^ (z >> 31)) >> 1
