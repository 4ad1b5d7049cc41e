"""One request inside the scheduler: what it asks for, its tokens, and where it stands.

Lengths of a req in memory, all in tokens:  shared_len <= computed_len <= kv_len <= seq_len.
`shared_len` slots belong to the radix tree (its locked path), the rest up to `kv_len` to the req.
`kv_len` counts what has been planned, `computed_len` what has been run and committed. While a row
with a guess is in flight, kv_len counts the guessed tokens too, and may be above seq_len by these.
`seq_len` counts the known tokens plus those sampled by a step whose result is not read yet.
"""

from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from scheduler_proc.core.requests.resume import reported_ids, without_reported_logprobs
from scheduler_proc.core.requests.spec import Wish, prompt_meta
from scheduler_proc.core.requests.tokens import Tokens
from scheduler_proc.fairness.credits import Account
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.media.spans import MediaFacts, Spans, spans_of
from scheduler_proc.memory.match_trackers import Cursor
from scheduler_proc.memory.tree_node import TreeNode
from scheduler_proc.sampling.token_rules import NO_LIMITS, Limits, TokenRules
from srt.wire.answer_meta import NO_META, AnswerMeta
from srt.wire.messages import Finish, LogprobDetail, unpack_ids
from srt.wire.ring_messages import TokenizedReq


@dataclass(slots=True, eq=False)
class Residency:
    """The memory that a req holds, from its entry to its exit. Only `ReqMemory` makes and drops it,
    so a late result applies only if its row's residency is still the req's."""

    row: int  # in ReqToTokenPool
    node: TreeNode  # locked
    prefill_len: int  # tokens that the req entered with
    shared_len: int
    computed_len: int
    kv_len: int
    num_spare: int = 0  # slots set aside for decoding, in its row from kv_len on
    num_drafted: int = 0  # the last of its kv_len tokens, guessed by the row that is in flight

    @property
    def planned_len(self) -> int:
        """Tokens that are planned, without those that are guessed."""
        return self.kv_len - self.num_drafted

    @property
    def prefill_left(self) -> int:
        """Tokens that the req entered with and that are not computed and committed yet."""
        return max(0, self.prefill_len - self.computed_len)


@dataclass(slots=True, eq=False)
class Pending:
    """What a req that asks for log-probabilities has not been sent: those of its known tokens at
    positions [start, stop), and what is sent together with them."""

    start: int
    stop: int
    jump: tuple[int, int] = (0, 0)  # how many tokens it drops, and how many bytes it skips
    ending: Finish | None = None  # how the req ends, if only log-probabilities are missing
    closes: bool = False  # the jump closes the output
    # Those of the jump's first tokens, which several steps may score: it is sent whole.
    scored: list[float] = field(default_factory=list)
    details: list[LogprobDetail] = field(default_factory=list)

    @property
    def is_unplanned(self) -> bool:
        """Whether some of these tokens are scored by no step yet."""
        return self.start < self.stop


@dataclass(slots=True, eq=False)
class Told:
    """What the detokenizer knows of a req, and the facts of its answer that it is to know."""

    has_start: bool = False  # that this scheduler has it
    has_first: bool = False  # and that it has given it a token
    counts: dict[str, int] = field(default_factory=dict)  # facts of its answer, by their names
    has_new_counts: bool = False  # that the detokenizer does not know

    def count(self, fact: str, by: int = 1) -> None:
        """Add to a fact, a field of `AnswerMeta`."""
        self.counts[fact] = self.counts.get(fact, 0) + by
        self.has_new_counts = True

    def take_counts(self) -> AnswerMeta:
        """The facts that were counted, and no others, for the detokenizer."""
        self.has_new_counts = False
        return replace(NO_META, **self.counts)


@dataclass(slots=True, eq=False)
class Req:
    """A request from admission to its end. Only the scheduler changes it."""

    handle: int
    arrival_s: float  # in the queue's order; `came_s` is the front's
    came_s: float
    wish: Wish
    tokens: Tokens
    spans: Spans  # of its prompt
    rules: TokenRules
    cursor: Cursor  # of its match while it waits
    grammar: Grammar | None
    retokeniser: Retokeniser | None  # None: there are no jumps
    is_limited: bool  # in what it may sample
    pending: Pending | None  # None: log-probabilities are not asked for
    meta: AnswerMeta  # the facts of its prompt, and of its first admission
    residency: Residency | None = None  # None: not in memory
    is_resumed: bool = False  # an earlier scheduler had it, and the detokenizer its first tokens
    told: Told = field(default_factory=Told)
    finish: Finish | None = None
    media_version: int | None = None  # of the encoder cache, when it lacked something last
    account: Account = field(default_factory=lambda: Account(0.0, 1.0))  # its caller's
    yielded: int | None = None  # its outputs when it gave way to another caller last
    num_steered: int = 0  # outputs that were chosen so that it ends within its limit

    @classmethod
    def of(
        cls,
        handle: int,
        wire: TokenizedReq,
        arrival_s: float,
        vocab_size: int,
        grammar: Grammar | None = None,
        retokeniser: Retokeniser | None = None,
        media: MediaFacts | None = None,
    ) -> "Req":
        """A new one. `grammar`, which has read what was reported of the output, belongs to it from
        now on."""
        wire = without_reported_logprobs(wire)
        tokens = Tokens(unpack_ids(wire.input_ids), wire.sampling, vocab_size)
        tokens.replace_tail(0, reported_ids(wire))
        rules = TokenRules(wire, vocab_size)
        # Not where the tokens that the tokenizer makes of forced text may be ruled out.
        jumps = wire.sampling.jump_forward != "off" and not rules.forbid_something
        pending = None
        if wire.scoring is not None:
            start = wire.scoring.start  # position 0 has no log-probability
            pending = Pending(tokens.prompt_len if start < 0 else max(1, start), tokens.prompt_len)
        return cls(
            handle=handle,
            arrival_s=arrival_s,
            came_s=wire.arrival_s or arrival_s,
            wish=Wish.of(wire, vocab_size),
            tokens=tokens,
            spans=spans_of(wire.media, media),
            rules=rules,
            cursor=Cursor(handle),
            grammar=grammar,
            retokeniser=retokeniser if jumps else None,
            is_limited=grammar is not None or rules.is_any,
            pending=pending,
            meta=prompt_meta(wire),
            is_resumed=wire.reported is not None,
        )

    @property
    def is_admitted(self) -> bool:
        """Whether it has been in memory."""
        return self.meta.queued_s is not None

    @property
    def key(self) -> tuple[bytes, str]:
        return self.wish.client, self.wish.rid

    @property
    def tracked(self) -> tuple[Cursor, np.ndarray, str, Spans]:
        """What the cache must know to follow its match."""
        return self.cursor, self.tokens.known, self.wish.salt, self.spans

    @property
    def held(self) -> Residency:
        """The residency of a req that is known to be in memory."""
        assert self.residency is not None
        return self.residency

    @property
    def remaining(self) -> int:
        """Output tokens that may still be sampled."""
        if self.pending is not None and self.pending.ending is not None:
            return 0
        return self.tokens.max_len - self.tokens.seq_len

    @property
    def extend_left(self) -> int:
        """Known or pending tokens that have not been planned yet, of a req in memory."""
        return self.tokens.seq_len - self.held.planned_len

    @property
    def max_prefix_len(self) -> int:
        """The longest cached prefix that is of use: the last token's logits are always needed, and
        those of the token before the first log-probability that is still wanted."""
        longest = self.tokens.known_len - 1
        if self.pending is not None and self.pending.is_unplanned:
            longest = min(longest, self.pending.start - 1)
        return longest

    @property
    def wants_logprobs(self) -> bool:
        """Whether known tokens wait for their log-probabilities."""
        return self.pending is not None and self.pending.is_unplanned

    @property
    def jumping(self) -> Retokeniser | None:
        """What finds its jumps; None where there are none. One that is scored could go back into a
        picture at the end of the prompt, whose embeddings need not be there any more."""
        if self.pending is None or self.residency is None or not self.spans:
            return self.retokeniser
        would_cut = self.spans.spans[-1].stop == self.tokens.prompt_len
        return None if would_cut else self.retokeniser

    def limits(self) -> Limits:
        """What may be sampled next.

        Raises GrammarError if the grammar cannot go on, NoTokenLeft if nothing is left.
        """
        if not self.is_limited:
            return NO_LIMITS
        return self.limits_after(self.tokens.outputs, self.tokens.num_outputs, self.grammar)

    def limits_after(
        self, outputs: np.ndarray, num_outputs: int, grammar: Grammar | None
    ) -> Limits:
        """What may be sampled after `num_outputs` tokens, the known ones being `outputs` (int32
        [n]), where `grammar` stands behind them. Raises what `limits` does."""
        most = self.tokens.max_len - self.tokens.prompt_len
        left = most - num_outputs if self.closes else None
        return self.rules.limits(outputs, num_outputs, grammar, left)

    @property
    def closes(self) -> bool:
        """Whether its output is steered to an end, which its grammar allows, within its limit."""
        return self.grammar is not None and self.wish.sampling.close is True

    @property
    def finish_at_limit(self) -> Finish:
        """How it ends with its last token, of which its grammar knows."""
        return Finish("stop" if self.closes and self.is_whole else "length")

    @property
    def is_whole(self) -> bool:
        """Whether its grammar allows its output as a whole."""
        grammar = self.grammar
        return grammar is not None and (grammar.is_accepting() or grammar.is_terminated())

    def is_stop(self, token: int, known_len: int) -> bool:
        """Whether `token`, as the last of `known_len`, is a stop id that counts."""
        num_outputs = known_len - self.tokens.prompt_len
        return token in self.wish.stop_ids and num_outputs > self.wish.sampling.min_new_tokens

    def drop_free_grammar(self) -> None:
        """Drop a grammar that allows everything from now on, as if the req never had one."""
        if self.grammar is not None and self.grammar.is_free():
            self.grammar = None
            self.is_limited = self.rules.is_any

    def replace_tail(self, drop: int, tokens: list[int]) -> None:
        """Put `tokens` in the place of the last `drop` outputs."""
        self.tokens.replace_tail(drop, tokens)
        self.cursor = Cursor(self.handle)  # it may have gone beyond the first of them
