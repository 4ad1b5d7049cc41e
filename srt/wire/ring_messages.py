"""Messages among the parts of a ring; see `messages`, and `ring_state` for its supervisor's.

What a scheduler receives and sends carries an `incarnation`: the supervisor gives each start of a
scheduler, and each scheduler in a new epoch, a number that is never used again. Messages of another
one are dropped.
"""

from msgspec import Struct

from srt.wire.answer_meta import AnswerMeta, PrefixIds
from srt.wire.constraint import Constraint
from srt.wire.errors import ErrorInfo
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints, ServiceTier
from srt.wire.media import MediaItem, MediaSpan
from srt.wire.messages import Finish, LogprobDetail, RingMessage
from srt.wire.pause import Pause
from srt.wire.sampling import Scoring

# ---- front, detokenizer -> scheduler ---------------------------------------------------------


class Reported(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What schedulers that are lost have reported of a request: its output `ids` (packed), whether
    the last of them was `forced` by a grammar, and the log-probabilities of its prompt before
    position `prompt_logprobs`. The next one continues from there, or ends it if it is `aborted`, or
    `is_guilty` of a loss. One that `is_suspect` it tries alone."""

    ids: bytes = b""
    forced: bool = False
    prompt_logprobs: int = 0
    aborted: bool = False
    is_suspect: bool = False
    is_guilty: bool = False


class TokenizedReq(RingMessage, frozen=True):
    """An admitted request. `eos_ids` are the ids that end it (none with ignore_eos).

    In `sampling` nothing is unset, `max_new_tokens` included; only `seed` may be None. A constraint
    is no longer in it: `grammar` is the key of its artefact, empty without one; with one,
    `sampling.close` is never None.

    The output may contain none of the sequences `bad_ids` (they are `sampling.bad_words`).

    The prompt had the tokens `healed_ids` (packed) at its end. The grammar makes their
    `healed_bytes` bytes come first in the output; they are not shown. It ends inside the character
    of which `begun` are the first bytes.

    `deadline_s` (0: none) is when it times out, on the clock that all processes share
    (time.monotonic()) and that leaves out pauses (`Pause.served_s`).

    If it was with an earlier scheduler, `reported` is what that has reported. `arrival_s` is when
    it came (0: now), on the same clock.

    `media` are its prompt's spans for items, in order, `prediction` (packed) the ids it may give.
    Of its `hints` the front has filled in all that it knows.

    `caller` (at most 64 characters) is who gets what it computes charged: a key's name or digest,
    `ip:` and an address, or `ring:` and a client's identity; "" is a caller like others. `weight`
    (1e-3 to 1e3) is the caller's share beside others; that of its latest request counts.
    """

    client: bytes
    rid: str
    incarnation: int
    input_ids: bytes
    sampling: FilledParams
    eos_ids: list[int] = []
    stream: bool = False
    scoring: Scoring | None = None
    cache_salt: str = ""
    grammar: str = ""
    healed_ids: bytes = b""
    healed_bytes: int = 0
    bad_ids: list[list[int]] = []
    deadline_s: float = 0.0
    reported: Reported | None = None
    arrival_s: float = 0.0
    media: list[MediaSpan] = []
    begun: bytes = b""
    prediction: bytes = b""
    caller: str = ""
    weight: float = 1.0
    hints: Hints | None = None
    priority: int = 0
    service_tier: ServiceTier = ""


class Abort(RingMessage, frozen=True):
    """End the request (client, rid). It never overtakes its TokenizedReq: the front sends both on
    one socket."""

    client: bytes
    rid: str
    incarnation: int


class GiveWay(RingMessage, frozen=True):
    """End the requests `rids` of a client, the parts of one request, with this error if none of
    them has begun: others have room then. Answered by their credits, or by Stays."""

    client: bytes
    rids: list[str]
    incarnation: int
    error: ErrorInfo


class Control(RingMessage, frozen=True):
    """A ControlReq on its way, with the client that asked, to each of `asked` schedulers. The
    front's `counts` are added to the scheduler's statistics."""

    client: bytes
    rid: str
    incarnation: int
    op: str
    timeout_s: float = 0.0
    counts: dict[str, float] = {}
    asked: int = 1
    node: int = 0


class PauseSet(RingMessage, frozen=True):
    """What holds from now on: a pause, or none. A scheduler that starts has none: it hears of one
    before its first request."""

    incarnation: int
    pause: Pause


class GrammarLost(RingMessage, frozen=True):
    """The grammar `key` is missing from the ring's directory, or damaged; requests wait for it."""

    key: str
    incarnation: int


class GrammarMade(RingMessage, frozen=True):
    """The answer to a GrammarLost: the grammar is there again, or `error` says why not."""

    key: str
    incarnation: int
    error: ErrorInfo | None = None


class CacheSnapshotReq(RingMessage, frozen=True):
    """Asks for all blocks that the scheduler's cache has, as one CacheEvents: from then on the
    front follows its changes."""

    incarnation: int


class MediaSent(RingMessage, frozen=True):
    """The answer to a MediaWanted for one item: its pixels are the frame that follows, or `error`
    says why there are none."""

    item: MediaItem
    incarnation: int
    error: ErrorInfo | None = None

    @property
    def num_frames(self) -> int:
        return 0 if self.error is not None else 1


SchedulerMessage = (
    TokenizedReq | Abort | GiveWay | Control | PauseSet | GrammarMade | CacheSnapshotReq | MediaSent
)


# ---- front <-> compiler ----------------------------------------------------------------------


class CompileReq(RingMessage, frozen=True):
    """Compile a constraint. `id` is the front's; it may ask again, after a restart, and for each
    `asker`, a caller: askers take turns."""

    id: int
    epoch: int
    constraint: Constraint
    asker: bytes = b""


class CompileCancel(RingMessage, frozen=True):
    """Nobody waits for the answer to the CompileReq `id` any more: it need not come."""

    id: int
    epoch: int


class CompileReply(RingMessage, frozen=True):
    """The artefact of a CompileReq lies under `key` in the ring's directory, or `error` says why
    there is none."""

    id: int
    epoch: int
    key: str = ""
    error: ErrorInfo | None = None


class CompilerStarted(RingMessage, frozen=True):
    """The compiler is up, and has no earlier CompileReq: the front asks again for what it needs."""


class CompileCounts(RingMessage, frozen=True):
    """The compiler's totals since its start, by the names that statistics have."""

    counts: dict[str, float]


CompilerMessage = CompileReply | CompilerStarted | CompileCounts
CompilerRequest = CompileReq | CompileCancel


# ---- scheduler -> detokenizer ----------------------------------------------------------------


class ReqStart(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the detokenizer must know of a request, sent once, before its first tokens. The first
    `skip_bytes` bytes of the output are not part of its text, which begins with the character that
    the prompt has `begun`. It came at `arrival_s`; `meta` has the facts of its prompt and its
    admission."""

    handle: int
    client: bytes
    rid: str
    meta: AnswerMeta
    stop: list[str] = []
    min_new_tokens: int = 0
    stream: bool = False
    scoring: Scoring | None = None
    skip_special_tokens: bool = True
    skip_bytes: int = 0
    stop_regex: list[str] = []
    no_stop_trim: bool = False
    arrival_s: float = 0.0
    has_origins: bool = False  # asked for
    begun: bytes = b""
    prefix: PrefixIds | None = None


class ReqEnd(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The end of a request. Every TokenizedReq gets exactly one."""

    handle: int
    finish: Finish


class PromptLogprobs(Struct, frozen=True, array_like=True, omit_defaults=True):
    """Log-probabilities of prompt tokens [start, start+n): ids int32 [n], logprobs float32 [n].
    Position 0 has none: NaN, and in `detail` id 0 and NaN."""

    handle: int
    start: int
    ids: bytes
    logprobs: bytes
    detail: LogprobDetail | None = None


class TokenBatch(RingMessage, frozen=True):
    """All that the scheduler has to report after a step.

    Tokens of requests that neither stream nor can be stopped by their text come many at a time.
    Parallel columns: `handles[i]` produced `counts[i]` tokens; their ids follow one another in
    `ids` (int32), with as many float32 in `logprobs` (NaN where not asked for; empty if nobody
    asked). `jumps` are (column, drop, skip): the ids of that column were forced by a grammar, and
    replace the req's last `drop` ids, whose `skip` bytes they begin with. `details` has
    an entry for each column whose req asked for one.

    The batch was made at `time_s`, on the clock that all processes share. `firsts` are the handles
    of the reqs that have their first token since the batch before, even if it is held back.
    `facts`, by handle, are what the scheduler has counted so far for reqs of the batch, if
    anything: they come with tokens, since a text may stop before the scheduler ends it.

    Of reqs that ask where tokens are from, the columns `guessed` have a token each that was guessed
    and right, and the columns `closing` what closes the output.
    """

    incarnation: int
    handles: list[int] = []
    counts: list[int] = []
    ids: bytes = b""
    logprobs: bytes = b""
    starts: list[ReqStart] = []
    prompt_logprobs: list[PromptLogprobs] = []
    ends: list[ReqEnd] = []
    jumps: list[tuple[int, int, int]] = []
    details: dict[int, LogprobDetail] = {}
    time_s: float = 0.0
    firsts: list[int] = []
    facts: dict[int, AnswerMeta] = {}
    guessed: list[int] = []
    closing: list[int] = []


class ControlReply(RingMessage, frozen=True):
    """The answer to a Control, of one of the `asked` schedulers; `data` is JSON."""

    client: bytes
    rid: str
    incarnation: int
    data: bytes = b"{}"
    error: ErrorInfo | None = None
    asked: int = 1


DetokenizerMessage = TokenBatch | ControlReply


# ---- detokenizer, scheduler -> front ---------------------------------------------------------


class Credit(RingMessage, frozen=True):
    """One request has ended, for whatever reason: its places at the front are free again. Its
    output had so many `tokens`."""

    client: bytes
    rid: str
    epoch: int
    tokens: int = 0


class Stays(RingMessage, frozen=True):
    """The requests of a GiveWay go on: one of them had begun."""

    client: bytes
    rids: list[str]
    incarnation: int


class TextStopped(RingMessage, frozen=True):
    """A stop string or pattern has ended the request (client, rid): the scheduler is to end it."""

    client: bytes
    rid: str
    epoch: int


class ClientGone(RingMessage, frozen=True):
    """A client can no longer be reached: end all its requests, including those on their way."""

    client: bytes
    epoch: int


class Progress(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the lost scheduler has reported of the request (client, rid)."""

    client: bytes
    rid: str
    reported: Reported


class SchedulerLost(RingMessage, frozen=True):
    """The detokenizer takes nothing any more of the replica's schedulers before `incarnation`; what
    they have reported of its open requests. `more`: the next message continues this one. It follows
    the credits of all requests that have ended."""

    incarnation: int
    progress: list[Progress] = []
    more: bool = False


class MediaWanted(RingMessage, frozen=True):
    """The scheduler needs the pixels of the items with these digests. Answered by a MediaSent for
    each."""

    incarnation: int
    digests: list[bytes]


class Pace(RingMessage, frozen=True):
    """How fast the scheduler works; sent several times a second while it has work.

    Of the requests that reached this incarnation, `left` have left its queue, and `left_tokens` of
    their prompts' tokens are computed or cached. A waiting prompt token costs `prompt_token_s`; a
    request, beyond its prompt, `request_s` once all `free_places` of the batch are taken; a
    step `step_s`. Running requests need `running_s` more than they would halfway to their ends.

    Of what has left, `left_first` requests and `left_first_tokens` are of the class `latency`. For
    one of these, as many running requests as are `giving_way` would go back to the queue.
    """

    incarnation: int
    left: int = 0
    left_tokens: int = 0
    prompt_token_s: float = 0.0
    request_s: float = 0.0
    free_places: int = 0
    step_s: float = 0.0
    running_s: float = 0.0
    left_first: int = 0
    left_first_tokens: int = 0
    giving_way: int = 0


class ReplicaLoad(RingMessage, frozen=True):
    """What a scheduler has to do, for the router.

    It has `received` requests of this incarnation, of which `running` run and `waiting` wait;
    `uncomputed` tokens of their prompts are not computed. Its pool has `free` and `evictable`
    slots. A prompt token costs `prompt_token_s`, a request `request_s` beyond its prompt. These are
    of the requests that it had. How fast it is, its steps say: those that mostly extend prompts
    take `extend_s` for `extend_len` tokens on average, the others `decode_s` for `decode_len`
    (0: not known).
    """

    incarnation: int
    received: int
    running: int = 0
    waiting: int = 0
    uncomputed: int = 0
    free: int = 0
    evictable: int = 0
    prompt_token_s: float = 0.0
    request_s: float = 0.0
    extend_len: float = 0.0
    extend_s: float = 0.0
    decode_len: float = 0.0
    decode_s: float = 0.0


class CacheEvents(RingMessage, frozen=True):
    """The blocks, by their hashes, that a scheduler's cache has `added` and `removed` since the
    message before, whose `seq` is one less; or all that it has, if it `is_snapshot`."""

    incarnation: int
    seq: int
    added: list[bytes] = []
    removed: list[bytes] = []
    is_snapshot: bool = False


FrontNews = (
    Credit
    | Stays
    | TextStopped
    | ClientGone
    | SchedulerLost
    | GrammarLost
    | MediaWanted
    | Pace
    | ReplicaLoad
    | CacheEvents
)
