"""Twenty questions that a newcomer asks a chat model, and the first tokens of a model's greedy
answers to them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduler_proc.executor.native_executor import NativeExecutor
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.messages import ChatMessage
from tests.scheduler_proc.ragged import Row, details_of, make_batch
from tokenizer_proc.prompt.chat_template import ChatTemplate

QUESTIONS = (
    "What is the capital of France?",
    "Hello",
    "Who are you?",
    "What is 2 + 2?",
    "Tell me a joke.",
    "What is the largest planet in the solar system?",
    "Which planet is farthest from the sun?",
    "Who wrote Romeo and Juliet?",
    "How many days are in a week?",
    "What is the boiling point of water?",
    "Write a haiku about the sea.",
    'Translate "good morning" into Spanish.',
    "What is photosynthesis?",
    "Name three fruits.",
    "Why is the sky blue?",
    "What is Python?",
    "How do I boil an egg?",
    "What is the meaning of life?",
    "Give me a name for a cat.",
    "Thank you!",
)
ANSWER_LEN = 16
# Slots that the pool of an executor needs for all questions at once.
POOL = 2048
# A choice between two tokens whose log-probabilities differ by less is a near tie.
NEAR_TIE = 0.02


class Answer(NamedTuple):
    """Up to ANSWER_LEN ids, the last perhaps one that ends answers, and by how much the
    log-probability of each is above the next likeliest token's."""

    ids: list[int]
    margins: np.ndarray

    @property
    def nearest(self) -> float:
        """The smallest margin."""
        return float(self.margins.min())


def prompts(questions: Sequence[str] = QUESTIONS) -> list[list[int]]:
    """The ids of chats of the embedded model that begin with these questions."""
    files = resolve_model(DEFAULT_MODEL)
    template, tokenizer = ChatTemplate.from_vocab(load_vocab(files)), load_tokenizer(files)
    texts = [template.render([ChatMessage("user", question)]) for question in questions]
    return [tokenizer.encode(text).tolist() for text in texts]


def answers(executor: NativeExecutor, asked: Sequence[Sequence[int]]) -> list[Answer]:
    """The first tokens of the greedy answers to these prompts, computed together."""
    ends = np.cumsum([len(prompt) + ANSWER_LEN for prompt in asked]).tolist()
    starts = [end - len(prompt) - ANSWER_LEN for end, prompt in zip(ends, asked, strict=True)]
    news, rows = [list(prompt) for prompt in asked], range(len(asked))
    lengths = [len(prompt) for prompt in asked]
    ids: list[np.ndarray] = []
    margins: list[np.ndarray] = []
    for _ in range(ANSWER_LEN):
        step = make_batch(
            [Row(news[i], range(starts[i], starts[i] + lengths[i])) for i in rows],
            want_logprob=True,
        )
        result = executor.run(
            replace(step, details=details_of(rows, [2] * len(asked), [[]] * len(asked)))
        )
        assert result.details is not None
        ids.append(result.next_ids)
        margins.append(-np.diff(result.details.top_logprobs.reshape(-1, 2))[:, 0])
        news = [[int(token)] for token in result.next_ids]
        lengths = [length + 1 for length in lengths]
    return [_until_end(np.array(ids)[:, i], np.array(margins)[:, i]) for i in rows]


def _until_end(ids: np.ndarray, margins: np.ndarray) -> Answer:
    """An answer of these tokens, which may go on after its end."""
    ends = np.isin(ids, load_vocab(resolve_model(DEFAULT_MODEL)).eos_ids)
    length = int(ends.argmax()) + 1 if ends.any() else len(ids)
    return Answer(ids[:length].tolist(), margins[:length])
