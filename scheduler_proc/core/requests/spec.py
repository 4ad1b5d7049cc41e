"""What a request asks of the scheduler. Made once from its message, and never changed."""

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from srt.wire.answer_meta import AnswerMeta
from srt.wire.filled_params import FilledParams
from srt.wire.hints import CLASSES, Hints, class_of
from srt.wire.packing import num_packed, unpack_ids
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import Scoring


class Wish(Struct, frozen=True):
    """The fields of a TokenizedReq that are read again and again while it runs. Its prompt is in
    the req's `Tokens`, what it rules out in its `TokenRules`."""

    client: bytes
    rid: str
    salt: str
    seed: int
    deadline_s: float
    sampling: FilledParams  # without allowed_token_ids
    scoring: Scoring | None
    logprob_ids: np.ndarray  # int32 [n]: those of `scoring`
    wants_details: bool
    stop_ids: frozenset[int]  # those that end the sequence, and those of the request
    stream: bool
    is_watched: bool
    healed_bytes: int
    begun: bytes
    prediction: np.ndarray  # int32 [n]: what the output may be, for guesses
    caller: str  # who is charged for it
    weight: float  # the caller's share beside others
    hints: Hints | None
    is_ahead: bool  # of time: where nobody else is the worse for it
    rank: int  # of its class in `CLASSES`: the greatest is served first, among its caller's
    priority: int  # in its class, the greatest first

    @classmethod
    def of(cls, wire: TokenizedReq, vocab_size: int) -> "Wish":
        scoring, sampling = wire.scoring, wire.sampling
        if scoring is not None and scoring.top > vocab_size:
            scoring = replace(scoring, top=vocab_size)
        wants_details = scoring is not None and scoring.has_details
        # Each token is looked at: by the client, or by the detokenizer, which looks for stop texts.
        is_watched = (
            wire.stream
            or bool(sampling.stop or sampling.stop_regex)
            or wants_details
            or sampling.token_origins
        )
        return cls(
            client=wire.client,
            rid=wire.rid,
            salt=wire.cache_salt,
            seed=sampling.seed or 0,  # the front has set it
            deadline_s=wire.deadline_s,
            # They may be the whole vocabulary: the rules keep them as a mask.
            sampling=replace(sampling, allowed_token_ids=None),
            scoring=scoring,
            logprob_ids=np.array([] if scoring is None else scoring.ids, np.int32),
            wants_details=wants_details,
            stop_ids=frozenset(wire.eos_ids).union(sampling.stop_token_ids),
            stream=wire.stream,
            is_watched=is_watched,
            healed_bytes=wire.healed_bytes,
            begun=wire.begun,
            prediction=unpack_ids(wire.prediction),
            caller=wire.caller,
            weight=wire.weight,
            hints=wire.hints,
            is_ahead=wire.hints is not None and wire.hints.is_ahead,
            rank=CLASSES.index(class_of(wire.service_tier, wire.priority)),
            priority=wire.priority,
        )


def prompt_meta(wire: TokenizedReq) -> AnswerMeta:
    """The facts of a request's prompt."""
    num_healed = num_packed(wire.healed_ids)
    return AnswerMeta(
        prompt_tokens=num_packed(wire.input_ids) + num_healed,
        healed_tokens=num_healed,
        media_tokens=sum(span.item.length for span in wire.media),
        hints_lowered=wire.hints is not None and wire.hints.is_lowered,
    )
