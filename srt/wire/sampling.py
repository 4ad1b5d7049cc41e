"""Sampling parameters as they travel on the wire, and the only place that checks their values."""

import math
from typing import Any, Literal

import msgspec
from msgspec import Struct

from srt.wire.constraint import CONSTRAINT_KINDS, Constraint, ConstraintKind, Whitespace
from srt.wire.errors import RequestError

MAX_STOP_STRINGS = 32
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_CONSTRAINT_CHARS = 512 * 1024
MAX_SEED = 2**63 - 1
MAX_TOP_K = 2**31 - 1
_WORD = 2**64 - 1
MAX_SAMPLES = 128  # of one prompt
MAX_STOP_REGEXES = 32
MAX_STOP_REGEX_CHARS = 256
MAX_BIASED_TOKENS = 4096
MAX_LOGIT_BIAS = 1e4
# Executors compute in float32: much less would be 0 there, or make every logit infinite.
MIN_REPETITION_PENALTY = 1e-6
MAX_ALLOWED_IDS = 2**20  # over all samples, each of which carries its own
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
GREEDY_TEMPERATURE = 1e-6

JumpForward = Literal["canonical", "off"]


class Scoring(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Which log-probabilities a request gets: those of the output's tokens, and of the prompt's
    from position `start` on (-1: none). At each of these positions the `top` most likely tokens
    are added, and those of `ids`."""

    start: int = -1
    top: int = 0
    ids: list[int] = []

    @property
    def has_details(self) -> bool:
        """Whether tokens are asked for besides the ones that are there."""
        return self.top > 0 or len(self.ids) > 0


class SamplingParams(Struct, frozen=True, array_like=True, omit_defaults=True):
    """How to sample one request.

    `max_new_tokens` None means: until the context (or the token pool) is full. Temperatures up
    to 1e-6 are greedy. `top_k` -1 is off. `min_new_tokens` blocks EOS, stop ids and stop strings
    until that many tokens were generated. `stop` never appears in the returned text. Of
    `stop_token_ids`, those that the vocabulary does not have stop nothing.

    At most one of `regex`, `json_schema` (JSON text), `ebnf`, `structural_tag` (JSON text) and
    `choices` constrains the output; see `Constraint` for `json_whitespace` and
    `constraint_after`. `jump_forward` says whether what a constraint forces is appended at once,
    as the tokens that the tokenizer makes of it, or sampled token by token.

    `token_healing` takes the prompt's last tokens back if a longer token begins with their text,
    and lets the model write that text again, in these or other tokens; it is not returned.

    Logits are changed in this order, before the temperature: `repetition_penalty` divides the
    positive ones, and multiplies the negative ones, of every token that the prompt or the output
    has (1 is off); `frequency_penalty` is subtracted once for each time the output has the token,
    `presence_penalty` once if it has it at all; `logit_bias` is added. Then only
    `allowed_token_ids` are left (None: all; the end too must be among them), and no token that
    would complete one of `bad_words` within the output; a request to which nothing is left ends
    with an error. Log-probabilities are those of the logits before all this.

    `n` is the number of completions of the prompt, which is computed once; sample i > 0 of a
    request with a seed draws as a request with `sub_seed(seed, i)` would.

    `stop_regex` are patterns of which the first match ends the output, as a stop string does;
    with `no_stop_trim` the stop string or match stays in the text.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    choices: list[str] | None = None
    json_whitespace: Whitespace = "compact"
    constraint_after: str = ""
    jump_forward: JumpForward = "canonical"
    token_healing: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    n: int = 1
    stop_regex: list[str] = []
    no_stop_trim: bool = False

    @property
    def has_penalties(self) -> bool:
        """Whether what was generated so far changes the logits."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    @property
    def constraint(self) -> Constraint | None:
        """The constraint that the output must match, if there is one."""
        for kind in CONSTRAINT_KINDS:
            value = getattr(self, kind)
            if value is not None:
                source = msgspec.json.encode(value).decode() if kind == "choices" else value
                return Constraint(kind, source, self.json_whitespace, self.constraint_after)
        return None

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    def check(self, vocab_size: int) -> None:
        """Raise RequestError naming the first field whose value is out of range."""
        _check(
            self.max_new_tokens is None or self.max_new_tokens >= 0,
            "max_new_tokens",
            "must be 0 or more",
        )
        _check(self.min_new_tokens >= 0, "min_new_tokens", "must be 0 or more")
        if self.max_new_tokens is not None:
            _check(
                self.min_new_tokens <= self.max_new_tokens,
                "min_new_tokens",
                f"must not exceed max_new_tokens ({self.max_new_tokens})",
            )
        _check(
            math.isfinite(self.temperature) and 0.0 <= self.temperature <= 100.0,
            "temperature",
            "must be between 0 and 100",
        )
        _check(0.0 < self.top_p <= 1.0, "top_p", "must be in (0, 1]")
        _check(
            self.top_k == -1 or 1 <= self.top_k <= MAX_TOP_K,
            "top_k",
            "must be -1 (off) or between 1 and 2**31 - 1",
        )
        _check(0.0 <= self.min_p <= 1.0, "min_p", "must be in [0, 1]")
        _check(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", "must be in [0, 2**63)")
        self.check_count()
        self._check_penalties()
        self._check_tokens(vocab_size)
        self._check_stops()
        self._check_stop_regexes()
        self._check_constraint()

    def check_count(self) -> None:
        """Raise RequestError unless `n` is in range."""
        _check(1 <= self.n <= MAX_SAMPLES, "n", f"must be between 1 and {MAX_SAMPLES}")

    def _check_penalties(self) -> None:
        for name in ("frequency_penalty", "presence_penalty"):
            _check(-2.0 <= getattr(self, name) <= 2.0, name, "must be between -2 and 2")
        _check(
            MIN_REPETITION_PENALTY <= self.repetition_penalty <= 2.0,
            "repetition_penalty",
            f"must be between {MIN_REPETITION_PENALTY:g} and 2",
        )

    def _check_tokens(self, vocab_size: int) -> None:
        """Of the fields that change single tokens' logits."""
        _check(
            len(self.logit_bias) <= MAX_BIASED_TOKENS,
            "logit_bias",
            f"takes at most {MAX_BIASED_TOKENS} tokens",
        )
        for token, bias in self.logit_bias.items():
            _check(0 <= token < vocab_size, "logit_bias", f"tokens must be in [0, {vocab_size})")
            _check(
                abs(bias) <= MAX_LOGIT_BIAS,  # NaN is not
                "logit_bias",
                f"values must be between -{MAX_LOGIT_BIAS:g} and {MAX_LOGIT_BIAS:g}",
            )
        if self.allowed_token_ids is not None:
            _check(len(self.allowed_token_ids) > 0, "allowed_token_ids", "must not be empty")
            _check(
                len(self.allowed_token_ids) <= vocab_size,
                "allowed_token_ids",
                f"takes at most {vocab_size} ids",
            )
            _check(
                self.n * len(self.allowed_token_ids) <= MAX_ALLOWED_IDS,
                "allowed_token_ids",
                f"times n takes at most {MAX_ALLOWED_IDS} ids",
            )
            _check(
                all(0 <= i < vocab_size for i in self.allowed_token_ids),
                "allowed_token_ids",
                f"must be in [0, {vocab_size})",
            )
        _check(len(self.bad_words) <= MAX_BAD_WORDS, "bad_words", f"takes at most {MAX_BAD_WORDS}")
        for word in self.bad_words:
            _check(
                0 < len(word) <= MAX_BAD_WORD_CHARS,
                "bad_words",
                f"must have 1 to {MAX_BAD_WORD_CHARS} characters each",
            )

    def _check_stop_regexes(self) -> None:
        _check(
            len(self.stop_regex) <= MAX_STOP_REGEXES,
            "stop_regex",
            f"takes at most {MAX_STOP_REGEXES}",
        )
        for pattern in self.stop_regex:
            _check(
                0 < len(pattern) <= MAX_STOP_REGEX_CHARS,
                "stop_regex",
                f"patterns must have 1 to {MAX_STOP_REGEX_CHARS} characters",
            )

    def _check_constraint(self) -> None:
        given: list[tuple[ConstraintKind, Any]] = [
            (kind, getattr(self, kind))
            for kind in CONSTRAINT_KINDS
            if getattr(self, kind) is not None
        ]
        if not given:
            _check(self.constraint_after == "", "constraint_after", "needs a constraint")
            _check(self.json_whitespace == "compact", "json_whitespace", "needs a constraint")
            return
        kind, value = given[-1]
        _check(len(given) == 1, kind, f"cannot be combined with {given[0][0]}")
        _check(len(value) > 0, kind, "must not be empty")
        size = sum(map(len, value)) if kind == "choices" else len(value)
        _check(
            size <= MAX_CONSTRAINT_CHARS,
            kind,
            f"is limited to {MAX_CONSTRAINT_CHARS} characters, not {size}",
        )
        _check(
            len(self.constraint_after) <= MAX_STOP_STRING_CHARS,
            "constraint_after",
            f"is limited to {MAX_STOP_STRING_CHARS} characters",
        )

    def _check_stops(self) -> None:
        _check(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"takes at most {MAX_STOP_STRINGS}")
        for text in self.stop:
            _check(text != "", "stop", "must not contain an empty string")
            _check(
                len(text) <= MAX_STOP_STRING_CHARS,
                "stop",
                f"strings are limited to {MAX_STOP_STRING_CHARS} characters",
            )
        _check(
            len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            "stop_token_ids",
            f"takes at most {MAX_STOP_TOKEN_IDS}",
        )


def _check(ok: bool, param: str, rule: str) -> None:
    if not ok:
        raise RequestError(f"{param} {rule}", param=param)


def sub_seed(seed: int, sample: int) -> int:
    """The seed of sample `sample` of a request: its own for sample 0, else 63 bits of both
    (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    if sample == 0:
        return seed
    z = (seed + sample * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return (z ^ (z >> 31)) >> 1
