"""One request inside the scheduler: its tokens, its place in memory, and where it stands.

Lengths of a req, all in tokens:  shared_len <= computed_len <= kv_len <= seq_len.
`shared_len` slots belong to the radix tree (its locked path), the rest up to `kv_len` to the req.
`kv_len` counts what has been planned, `computed_len` what has been run and committed.
`seq_len` counts the known tokens plus those sampled by a step whose result is not read yet.
"""

import numpy as np
from msgspec.structs import replace

from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.limits import NO_LIMITS, Limits, TokenRules
from scheduler_proc.penalties import LogitChanges
from scheduler_proc.tree_node import TreeNode
from scheduler_proc.watchers import Cursor
from srt.wire.messages import Finish, TokenizedReq, unpack_ids
from srt.wire.sampling import SamplingParams, Scoring


class Req:
    """A request from admission to its end. Only the scheduler changes it."""

    # A step looks at all reqs: the smaller they are, the more of them fit into a cache.
    __slots__ = (
        *("handle", "client", "rid", "salt", "seed", "arrival_s", "deadline_s", "sampling"),
        *("max_new_tokens", "eos_ids", "stop_ids", "stream", "is_watched", "healed_tokens"),
        *("healed_bytes", "scoring", "logprob_ids"),
        *("wants_details", "grammar", "retokeniser", "is_limited", "logit_changes"),
        *("_rules", "_stop_id_array", "_penalties", "_is_restricted", "_buffer"),
        *("prompt_len", "num_tokens", "row", "residency", "node", "cursor", "num_spare"),
        *("shared_len", "computed_len", "kv_len", "prefill_len", "pending", "pending_sample"),
        *("cached_tokens", "retractions", "started", "finish", "ending"),
        *("next_logprob", "logprob_stop", "unsent_jump"),
    )

    def __init__(
        self,
        handle: int,
        wire: TokenizedReq,
        seed: int,
        now: float,
        vocab_size: int,
        grammar: Grammar | None = None,
        retokeniser: Retokeniser | None = None,
    ) -> None:
        """`grammar`, at the beginning of the output, belongs to the req from now on."""
        self.handle = handle
        self.grammar = grammar
        self.client = wire.client
        self.rid = wire.rid
        # The rules keep the ids, which may be the whole vocabulary, as a mask.
        self.sampling: SamplingParams = replace(wire.sampling, allowed_token_ids=None)
        self.max_new_tokens = wire.sampling.max_new_tokens or 0
        self.eos_ids = frozenset(wire.eos_ids)
        self.stop_ids = self.eos_ids | frozenset(wire.sampling.stop_token_ids)
        params = wire.sampling
        self._stop_id_array = np.array(sorted(self.stop_ids), np.int32)
        self._rules = TokenRules(wire, vocab_size)
        # Not where the tokens that the tokenizer makes of forced text may be ruled out.
        jumps = wire.sampling.jump_forward != "off" and not self._rules.forbid_something
        self.retokeniser = retokeniser if jumps else None
        self.stream = wire.stream
        self.healed_tokens = len(wire.healed_ids) // 4
        self.healed_bytes = wire.healed_bytes
        scoring = wire.scoring
        if scoring is not None and scoring.top > vocab_size:
            scoring = replace(scoring, top=vocab_size)
        self.scoring: Scoring | None = scoring
        self.logprob_ids = np.array([] if scoring is None else scoring.ids, np.int32)
        self.wants_details = scoring is not None and scoring.has_details
        # Each token is looked at: by the client, or by the detokenizer for what stops the text.
        has_stops = bool(params.stop or params.stop_regex)
        self.is_watched = wire.stream or has_stops or self.wants_details
        self.salt = wire.cache_salt
        self.seed = seed
        self.arrival_s = now
        self.deadline_s = wire.deadline_s

        prompt = unpack_ids(wire.input_ids)
        self.prompt_len = len(prompt)
        self._buffer = np.empty(self.prompt_len + self.max_new_tokens, np.int32)
        self._buffer[: self.prompt_len] = prompt
        self.num_tokens = self.prompt_len
        self.logit_changes: LogitChanges | None = None
        if wire.sampling.has_penalties or wire.sampling.logit_bias:
            self.logit_changes = LogitChanges(wire.sampling, prompt, vocab_size)
        self._penalties = self.logit_changes if wire.sampling.has_penalties else None
        self._is_restricted = self._rules.forbid_something or params.min_new_tokens > 0
        self.is_limited = grammar is not None or self._is_restricted  # in what it may sample

        self.row = -1  # in ReqToTokenPool; -1 while not resident
        # Counts entries and exits, so that a late result knows if it still applies.
        self.residency = 0
        self.node: TreeNode | None = None  # locked while resident
        self.cursor = Cursor(handle)  # of its match while it waits
        self.num_spare = 0  # slots set aside for decoding, in its row from kv_len on
        self.shared_len = 0
        self.computed_len = 0
        self.kv_len = 0
        self.prefill_len = 0  # tokens that its present residency began with
        self.pending = 0  # tokens sampled by a step not committed yet: 0 or 1
        self.pending_sample = -1  # which sample of that step

        self.cached_tokens = -1  # of the first admission; -1 before
        self.retractions = 0
        self.started = False  # the detokenizer has been told
        self.finish: Finish | None = None
        self.ending: Finish | None = None  # the end that only waits for log-probabilities
        # Known tokens whose log-probabilities are still to be computed: positions [next, stop).
        self.next_logprob = self.logprob_stop = self.prompt_len
        if scoring is not None and scoring.start >= 0:
            self.next_logprob = max(1, scoring.start)  # position 0 has none
        self.unsent_jump = (0, 0)  # drop and skip of a jump that waits for them

    @property
    def key(self) -> tuple[bytes, str]:
        return self.client, self.rid

    @property
    def tokens(self) -> np.ndarray:
        """Prompt and output ids known so far, int32 [num_tokens]; a view, not to be kept."""
        return self._buffer[: self.num_tokens]

    @property
    def seq_len(self) -> int:
        return self.num_tokens + self.pending

    @property
    def num_outputs(self) -> int:
        """Output tokens, those not read yet included."""
        return self.num_tokens + self.pending - self.prompt_len

    @property
    def remaining(self) -> int:
        """Output tokens that may still be sampled."""
        if self.ending is not None:
            return 0
        return self.max_new_tokens - (self.num_tokens + self.pending - self.prompt_len)

    @property
    def is_resident(self) -> bool:
        return self.row >= 0

    @property
    def is_prefilling(self) -> bool:
        """Resident, and the tokens it was admitted with are not all computed and committed."""
        return self.computed_len < self.prefill_len  # both are 0 while it is not resident

    @property
    def wants_decode(self) -> bool:
        """Resident, its prefill planned, and with something left to sample or to score."""
        if self.kv_len < self.prefill_len or self.num_tokens + self.pending <= self.kv_len:
            return False
        return self.remaining > 0 or self.wants_logprobs

    @property
    def extend_left(self) -> int:
        """Known or pending tokens that have not been planned yet."""
        return self.num_tokens + self.pending - self.kv_len

    @property
    def max_prefix_len(self) -> int:
        """The longest cached prefix of use: the last token's logits are always needed, and the
        logits of the token before the first log-probability that is still wanted."""
        longest = self.num_tokens - 1
        if self.wants_logprobs:
            longest = min(longest, self.next_logprob - 1)
        return longest

    @property
    def wants_logprobs(self) -> bool:
        """Whether known tokens wait for their log-probabilities."""
        return self.next_logprob < self.logprob_stop

    @property
    def needs_newest_token(self) -> bool:
        """Whether what it may sample next depends on the token before."""
        return self.grammar is not None or self._rules.need_output

    def limits(self) -> Limits:
        """What may be sampled next: the stop ids may not until min_new_tokens.

        Raises GrammarError if the grammar cannot go on, NoTokenLeft if nothing is left.
        """
        if not self.is_limited:
            return NO_LIMITS
        blocks_stop = self.num_outputs < self.sampling.min_new_tokens
        output = self._buffer[self.prompt_len : self.num_tokens]
        stops = self._stop_id_array if blocks_stop else self._stop_id_array[:0]
        return self._rules.limits(output, self.grammar, stops)

    def kind_of_limits(self) -> Limits:
        """What `limits` will give, as far as it does not depend on the newest token."""
        return self._rules.kind(self.grammar)

    def is_stop(self, token: int, num_tokens: int) -> bool:
        """Whether `token`, as the last of `num_tokens`, is a stop id that counts."""
        num_outputs = num_tokens - self.prompt_len
        return token in self.stop_ids and num_outputs > self.sampling.min_new_tokens

    def drop_free_grammar(self) -> None:
        """Let go of a grammar that has nothing left to say: the req is as if it never had one."""
        if self.grammar is not None and self.grammar.is_free():
            self.grammar = None
            self.is_limited = self._is_restricted

    def append(self, token: int) -> None:
        self._buffer[self.num_tokens] = token
        self.num_tokens += 1
        if self._penalties is not None:
            self._penalties.count(token, 1)

    def replace_tail(self, drop: int, tokens: list[int]) -> None:
        """Put `tokens` in the place of the last `drop` outputs."""
        first = self.num_tokens - drop
        if self._penalties is not None:
            for token in self.tokens[first:].tolist():
                self._penalties.count(token, -1)
            for token in tokens:
                self._penalties.count(token, 1)
        self.num_tokens = first + len(tokens)
        self._buffer[first : self.num_tokens] = tokens
        self.cursor = Cursor(self.handle)  # it may have gone beyond `first`

    def output_tail(self, limit: int) -> list[int]:
        """The last `limit` outputs, or all if there are fewer."""
        first = max(self.prompt_len, self.num_tokens - limit)
        tail: list[int] = self._buffer[first : self.num_tokens].tolist()
        return tail
