"""Makes the scheduler's and the client's messages of a request whose text was read.

Called by the front. It knows the model's limits and has no state; whether there is room for the
requests is decided by the front. Raises RequestError naming the field for what does not fit.
"""

from typing import Any

from msgspec.structs import replace

from srt.answers.reasoning import reasoning_tags
from srt.files.vocab import MAX_CHARACTER_BYTES, Vocab
from srt.wire.answer_meta import AnswerMeta
from srt.wire.constraint import CONSTRAINT_KINDS, Constraint, free_key
from srt.wire.errors import RequestError
from srt.wire.filled_params import NEUTRAL, FilledParams, SamplingDefaults
from srt.wire.messages import Admitted, GenerateReq, ScoreReq, score_rid
from srt.wire.packing import num_packed, packed_size, unpack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import SamplingParams, Scoring
from tokenizer_proc.dispatch.admission import Admission, samples_of
from tokenizer_proc.prompt.healing import Healing, PromptHealer
from tokenizer_proc.prompt.prompt import Prompt, too_long
from tokenizer_proc.tokenizing.reading import Reading, ReadPrompt, ReadScore

# With the constraint that must still be compiled.
Built = tuple[Admission, Constraint | None]
_OF_SCORES = FilledParams(max_new_tokens=0)


class Builder:
    """For the model of `vocab`, whose requests hold at most `limit` tokens."""

    def __init__(
        self,
        vocab: Vocab,
        limit: int,
        close_constrained: bool = False,
        open_objects: bool = False,
        defaults: SamplingDefaults = NEUTRAL,
        reasoning_parser: str = "auto",
    ) -> None:
        """With `close_constrained` every constrained output is closed unless it says otherwise,
        without it that of a JSON Schema. With `open_objects` objects that list properties may have
        others where neither request nor schema says anything about them, without it none.
        `defaults` are the parameters that requests leave unset. With the `reasoning_parser` "auto"
        constrained answers do not begin with reasoning by themselves if the vocabulary has no token
        for the opening tag: to a model that was not trained to reason it is a beginning of text as
        good as others, and what follows would be free up to the limit."""
        self._vocab = vocab
        self._limit = limit
        self._close_constrained, self._open_objects = close_constrained, open_objects
        self._defaults = defaults
        self._tags = reasoning_tags(vocab.chat_template)
        has_token = self._tags.begin.encode() in vocab.token_bytes
        self._may_reason = has_token or reasoning_parser != "auto"
        self._healer = PromptHealer(vocab)

    def build(self, client: bytes, req: GenerateReq | ScoreReq, reading: Reading) -> Built:
        """The requests of all parts of `req`."""
        if isinstance(req, GenerateReq):
            assert isinstance(reading, ReadPrompt)
            return self._generation(client, req, reading)
        assert isinstance(reading, ReadScore)
        return _score(client, req, reading), None

    def _generation(self, client: bytes, req: GenerateReq, reading: ReadPrompt) -> Built:
        ids = unpack_ids(reading.ids)
        prompt = Prompt(ids, reading.param, reading.opens_reasoning, reading.closes_reasoning)
        sampling = self._resolved(req.sampling, prompt)
        _check_scoring_start(req.scoring, len(ids))
        # Nothing up to the last token that stands for a picture is taken back.
        shown_until = reading.media[-1].stop if reading.media else 1
        healing = self._healer.heal(ids[shown_until - 1 :], sampling)
        constraint = self._constraint(sampling, prompt)
        admitted = Admitted(
            req.rid,
            req.epoch,
            AnswerMeta(
                prompt_tokens=len(ids),
                healed_tokens=healing.num_tokens,
                media_tokens=sum(span.item.length for span in reading.media),
            ),
            prompt.opens_reasoning,
            closes_reasoning=prompt.closes_reasoning,
            lead=None if constraint is None else _lead(constraint, req.sampling),
        )
        tokenized = self._tokenized(client, req, sampling, reading, healing)
        if constraint is not None:
            constraint = replace(constraint, before=healing.text)
            closes = sampling.close
            if closes is None:
                closes = self._close_constrained or constraint.kind == "json_schema"
            tokenized = replace(tokenized, sampling=replace(tokenized.sampling, close=closes))
        elif healing.text:
            tokenized = replace(tokenized, grammar=free_key(healing.text))
        return Admission(admitted, samples_of(tokenized), req.routed_replica), constraint

    def _tokenized(
        self,
        client: bytes,
        req: GenerateReq,
        sampling: FilledParams,
        reading: ReadPrompt,
        healing: Healing,
    ) -> TokenizedReq:
        """The request as for one sample, without a grammar."""
        kept = num_packed(reading.ids) - healing.num_tokens
        return TokenizedReq(
            client=client,
            rid=req.rid,
            incarnation=0,  # the relay's to say
            input_ids=reading.ids[: packed_size(kept)],
            sampling=_unconstrained(sampling),
            eos_ids=[] if sampling.ignore_eos else list(self._vocab.eos_ids),
            stream=req.stream,
            scoring=req.scoring and replace(req.scoring, start=min(req.scoring.start, kept)),
            cache_salt=req.cache_salt,
            hints=req.hints and replace(req.hints, is_lowered=False),
            priority=req.priority,
            service_tier=req.service_tier,
            healed_ids=reading.ids[packed_size(kept) :],
            healed_bytes=len(healing.text.encode()),
            bad_ids=reading.bad_ids,
            media=reading.media,
            prediction=reading.prediction[: packed_size(sampling.max_new_tokens or 0)],
            begun=self._vocab.begun_by(unpack_ids(reading.ids)[-MAX_CHARACTER_BYTES:].tolist()),
        )

    def _constraint(self, sampling: SamplingParams, prompt: Prompt) -> Constraint | None:
        """The constraint. One that waits for the reasoning's end does not if the prompt has it, or
        if the model does not reason by itself; if the prompt has its beginning, the output is known
        to go on inside it. Here, where all requests pass, objects are closed: the compiler leaves
        them as given."""
        after, opener = sampling.constraint_after, sampling.constraint_opener
        if after == self._tags.end:
            starts = opener == self._tags.begin and not self._may_reason
            if prompt.closes_reasoning or (starts and not prompt.opens_reasoning):
                sampling = replace(sampling, constraint_after="", constraint_opener="")
            elif prompt.opens_reasoning:
                sampling = replace(sampling, constraint_opener="")
        constraint = sampling.constraint
        if constraint is None or constraint.kind not in ("json_schema", "structural_tag"):
            return constraint
        if sampling.disable_additional_properties is not None:
            return constraint
        return replace(constraint, closed=not self._open_objects)

    def _resolved(self, sampling: SamplingParams, prompt: Prompt) -> FilledParams:
        """`sampling` with the defaults where it is unset, a `max_new_tokens` that fits after the
        prompt, and only those stop ids that the vocabulary has."""
        wanted = sampling.max_new_tokens
        room = self._limit - len(prompt.ids)
        if room < (1 if wanted is None else 0):
            raise too_long(self._limit, prompt)
        if wanted is not None and wanted > room:
            raise too_long(self._limit, prompt, wanted)
        resolved = room if wanted is None else wanted
        if sampling.min_new_tokens > resolved:
            raise RequestError(
                f" must not exceed the {resolved} tokens left for the completion",
                at="min_new_tokens",
            )
        stops = [i for i in sampling.stop_token_ids if 0 <= i < self._vocab.vocab_size]
        sampling = replace(sampling, max_new_tokens=resolved, stop_token_ids=stops)
        return FilledParams.of(sampling, self._defaults)


def _lead(constraint: Constraint, asked: SamplingParams) -> tuple[str, str] | None:
    """What the constraint waits for, if it is not what the request says."""
    lead = constraint.after, constraint.opener
    return None if lead == (asked.constraint_after, asked.constraint_opener) else lead


def _score(client: bytes, req: ScoreReq, reading: ReadScore) -> Admission:
    """Requests that generate nothing and want log-probabilities."""
    parts = [
        TokenizedReq(
            client=client,
            rid=score_rid(req.rid, i),
            incarnation=0,  # the relay's to say
            input_ids=ids,
            sampling=_OF_SCORES,
            scoring=Scoring(start=reading.start),
            cache_salt=req.cache_salt,
            media=media,
        )
        for i, (ids, media) in enumerate(zip(reading.sequences, reading.media, strict=True))
    ]
    media_tokens = sum(span.item.length for span in reading.media[0])
    meta = AnswerMeta(prompt_tokens=reading.prefix_tokens, media_tokens=media_tokens)
    return Admission(Admitted(req.rid, req.epoch, meta, score_start=reading.start), parts)


def _unconstrained(sampling: FilledParams) -> FilledParams:
    """`sampling` without the constraint's texts, which the scheduler does not need."""
    if sampling.constraint is None:
        return sampling
    texts: dict[str, Any] = dict.fromkeys(CONSTRAINT_KINDS)
    texts |= {"constraint_after": "", "constraint_opener": ""}
    texts |= {"json_whitespace": "compact", "disable_additional_properties": None}
    return replace(sampling, **texts)


def _check_scoring_start(scoring: Scoring | None, prompt_tokens: int) -> None:
    if scoring is not None and not -1 <= scoring.start <= prompt_tokens:
        raise RequestError(
            f" must be between -1 and the prompt's {prompt_tokens} tokens",
            at="logprob_start_len",
        )
