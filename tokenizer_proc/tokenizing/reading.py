"""Reads requests' texts: the messages that a reading child sends back to the front.

`TextReader` does all work that takes time in proportion to the text, or runs what came with the
model: the chat template and the tokenizer. It is called in the tokenizer's children, see `readers`.
"""

from collections.abc import Sequence

from msgspec import Struct

from srt.answers.captures import captures_of
from srt.files.tokenizer import Tokenizer
from srt.patterns.classes import load_tables
from srt.patterns.stops import build_stops
from srt.wire.constraint import Capture, GrammarError
from srt.wire.errors import INTERNAL, ErrorInfo, RequestError
from srt.wire.media import MediaItem, MediaSpan
from srt.wire.messages import CaptureReq, ChatMessage, GenerateReq, ScoreReq, pack_ids
from tokenizer_proc.media.showing import Shown
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.queueing.turns import TextReq

# The scheduler keeps the ids of all bad words, and may look at all of them for every token that it
# samples.
MAX_BAD_TOKENS = 4096


class ReadPrompt(Struct, frozen=True, tag=True, array_like=True):
    """A `prompt.Prompt`, its ids packed, the ids that its bad words stand for, and those of the
    predicted output, packed."""

    ids: bytes
    param: str
    opens_reasoning: bool = False
    closes_reasoning: bool = False
    bad_ids: list[list[int]] = []
    media: list[MediaSpan] = []
    prediction: bytes = b""


class ReadScore(Struct, frozen=True, tag=True, array_like=True):
    """A `scoring.ScorePrompts`, its sequences packed."""

    sequences: list[bytes]
    start: int
    prefix_tokens: int
    media: list[list[MediaSpan]] = []


class ReadCaptures(Struct, frozen=True, tag=True, array_like=True):
    """The captures of an answer."""

    captures: list[Capture] | None


class Unreadable(Struct, frozen=True, tag=True, array_like=True):
    """The request is refused."""

    error: ErrorInfo


Reading = ReadPrompt | ReadScore | ReadCaptures | Unreadable


def has_text(req: TextReq) -> bool:
    """Whether a request has anything to read besides token ids."""
    if not isinstance(req, GenerateReq) or req.input_ids is None or req.media:
        return True
    return bool(req.sampling.bad_words or req.sampling.stop_regex or req.prediction)


def num_chars(req: TextReq) -> int:
    """The approximate number of characters of a request: those of all that may be long."""
    if isinstance(req, ScoreReq):
        texts = [c.text for c in req.continuations if c.text is not None]
        return len(texts) * len(req.text or "") + sum(map(len, texts)) + len(req.text or "")
    if isinstance(req, CaptureReq):
        return len(req.constraint.source) + len(req.text)
    total = len(req.text or "") + len(req.chat.template_args)
    if isinstance(req, GenerateReq):
        total += len(req.prediction)
    total += sum(len(t.name) + len(t.description) + len(t.parameters) for t in req.tools)
    return total + sum(map(_message_chars, req.messages or ()))


def _message_chars(message: ChatMessage) -> int:
    texts = message.role, message.content, message.tool_call_id, message.name, message.reasoning
    calls = sum(len(c.id) + len(c.name) + len(c.arguments) for c in message.tool_calls)
    parts = sum(len(part) for part in message.parts if isinstance(part, str))
    return sum(map(len, texts)) + calls + parts


class TextReader:
    """Reads requests of every kind. It changes nothing, so a forked child may do it."""

    def __init__(self, tokenizer: Tokenizer, prompts: PromptReader, scores: ScoreReader) -> None:
        self._tokenizer = tokenizer
        self.prompts = prompts
        self.scores = scores
        load_tables()  # before children are forked: otherwise each would derive them

    def read(self, req: TextReq, items: Sequence[Sequence[MediaItem]] = ()) -> Reading:
        """The reading of `req`, whose media have these items, or why it is refused. Raises no
        Exception."""
        try:
            return self._read(req, items)
        except RequestError as error:
            return Unreadable(error.info)
        except Exception as error:
            reason = f"the model's tokenizer failed at this text: {_line(error)}"
            return Unreadable(ErrorInfo(INTERNAL, reason))

    def _read(self, req: TextReq, items: Sequence[Sequence[MediaItem]]) -> Reading:
        if isinstance(req, CaptureReq):
            return ReadCaptures(_captures(req))
        if isinstance(req, ScoreReq):
            score = self.scores.read(req, Shown(req.media, items))
            packed = [pack_ids(sequence) for sequence in score.sequences]
            return ReadScore(packed, score.start, score.prefix_tokens, score.media)
        bad: list[list[int]] = []
        prediction = b""
        if isinstance(req, GenerateReq):
            _check_stop_patterns(req.sampling.stop_regex)
            prompt = self.prompts.read(req, Shown(req.media, items))
            bad = bad_ids(req.sampling.bad_words, self._tokenizer)
            if req.prediction:
                prediction = pack_ids(self.prompts.encode_inside(req.prediction, "prediction"))
        else:
            prompt = self.prompts.tokenize(req)
        return ReadPrompt(
            pack_ids(prompt.ids),
            prompt.param,
            prompt.opens_reasoning,
            prompt.closes_reasoning,
            bad,
            prompt.media,
            prediction,
        )


def bad_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The token sequences that `bad_words` stand for, each once. Raises RequestError for a word
    without tokens, and for more than MAX_BAD_TOKENS tokens in all.

    As in vLLM, a word is banned both directly after other text, such as a bracket, and after a
    space, each time in the tokens that the tokenizer makes of it there. Other tokens that spell the
    same word are not.
    """
    found: dict[tuple[int, ...], None] = {}
    num_tokens = 0
    for i, word in enumerate(words):
        bare = word.lstrip() or word
        for text in (bare, " " + bare):
            ids = tokenizer.encode_inside(text).tolist()
            if not ids:
                raise RequestError(f"bad_words[{i}] has no tokens", param="bad_words")
            num_tokens += len(ids)
            if num_tokens > MAX_BAD_TOKENS:
                limit = f" take more than {MAX_BAD_TOKENS} tokens, the limit"
                raise RequestError(limit, at="bad_words")
            found[tuple(ids)] = None
    return [list(ids) for ids in found]


def _captures(req: CaptureReq) -> list[Capture] | None:
    try:
        return captures_of(req.constraint, req.text)
    except GrammarError as error:
        raise RequestError(str(error), param=req.constraint.kind) from None


def _check_stop_patterns(patterns: list[str]) -> None:
    try:
        build_stops(patterns)
    except GrammarError as error:
        raise RequestError(f" {error}", at="stop_regex") from None


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
