"""Makes the front of a model from the server's options. Called by the tokenizer's actor."""

import logging

from srt.answers.tool_format import name_of
from srt.args import ServerArgs
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import Vocab
from srt.wire.constraint import COMPILE_WAIT_FACTOR
from srt.wire.errors import ConfigError
from tokenizer_proc.admission.builder import Builder
from tokenizer_proc.admission.front import Front
from tokenizer_proc.admission.grammars import GrammarFinder, Grammars
from tokenizer_proc.admission.parking import Parking
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.media.showing import Showing, controls_of
from tokenizer_proc.prompt.chat_template import ChatTemplate, load_template
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.queueing.callers import Callers
from tokenizer_proc.tokenizing.reading import TextReader

log = logging.getLogger(__name__)

COMPILE_GRACE_S = 5.0  # for messages to the compiler and back
# A compiler with work reports every second; but on a busy machine it takes ten seconds to start.
MAX_SILENCE_S = 30.0


def make_front(
    args: ServerArgs,
    files: ModelFiles,
    vocab: Vocab,
    processor: MediaProcessor | None,
    dispatch: Dispatch,
    finder: GrammarFinder,
    callers: Callers,
) -> tuple[Front, str]:
    """The front that sends what it admits by `dispatch`, and finds compiled grammars by `finder`;
    and the name of the format in which its model writes calls. Without a `processor` it refuses
    media."""
    template = _template(args, vocab)
    limit = min(vocab.context_len, args.pool_tokens or vocab.context_len)
    compile_s = args.grammar_compile_timeout * COMPILE_WAIT_FACTOR + COMPILE_GRACE_S
    kinds = processor.kinds if processor else ()
    front = Front(
        dispatch,
        _text_reader(args, files, vocab, template, processor, limit),
        Builder(
            vocab,
            limit,
            args.close_constrained,
            args.open_objects,
            vocab.sampling.under(args.sampling_defaults).defaults,
            args.reasoning_parser,
        ),
        MediaDesk(kinds, args.limit_media, args.media_queue_mb * 2**20),
        Grammars(dispatch, Parking(compile_s, MAX_SILENCE_S), finder),
        callers,
    )
    return front, name_of(template.call_format)


def _text_reader(
    args: ServerArgs,
    files: ModelFiles,
    vocab: Vocab,
    template: ChatTemplate,
    processor: MediaProcessor | None,
    limit: int,
) -> TextReader:
    """The reader of requests that hold at most `limit` tokens."""
    tokenizer = load_tokenizer(files, controls_of(processor))
    prompts = PromptReader(
        tokenizer,
        template,
        vocab.vocab_size,
        limit,
        args.allow_special_tokens_in_content,
        None if processor is None else Showing(processor),
        args.system_line_last,
    )
    max_requests, max_tokens = args.max_queued_requests, args.max_queued_tokens
    return TextReader(tokenizer, prompts, ScoreReader(prompts, limit, max_tokens, max_requests))


def _template(args: ServerArgs, vocab: Vocab) -> ChatTemplate:
    """The template of a model. One that the options name must be of use; without one of its own, a
    model serves all but chats."""
    template = load_template(vocab)
    if template.why_not:
        if args.chat_template:
            raise ConfigError(f"--chat-template {args.chat_template}: {template.why_not}")
        log.warning("no chats: %s", template.why_not)
    return template
