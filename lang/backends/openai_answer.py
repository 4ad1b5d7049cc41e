"""Reads the OpenAI routes' answers, whole or event by event, as `Completion`s and scores."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from lang.backends.base import Completion, Scored, Scores
from lang.errors import FilterError, RefusalError
from srt.wire.errors import INTERNAL, UNAVAILABLE, RequestError


class Answer:
    """Collects one choice. Call `take` with every payload in order, then `completion`.

    A payload without choices, such as the usage at the end of a stream, is accepted too.
    """

    def __init__(self, has_logprobs: bool) -> None:
        self._text = self._reasoning = self._refusal = self._id = ""
        self._finish: str | None = None
        self._matched: str | int | None = None
        self._usage: dict[str, Any] = {}
        self._captures: list[Any] | None = None
        self._logprobs: list[list[Any]] | None = [] if has_logprobs else None

    def take(self, payload: Any) -> bool:
        """Add a payload; returns whether there is new text."""
        try:
            return self._take(payload)
        except (KeyError, IndexError, TypeError, AttributeError) as exc:
            message = f"the server's answer has no {exc}, or not of the expected form"
            raise RequestError(message, code=INTERNAL) from exc

    def _take(self, payload: Any) -> bool:
        self._id = self._id or str(payload.get("id") or "")
        self._usage = payload.get("usage") or self._usage
        if not payload["choices"]:
            return False
        choice = payload["choices"][0]
        said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        new, thought, refused = parts_of(said.get("content"))
        self._text += new
        self._reasoning += thought + (said.get("reasoning_content") or "")
        self._refusal += refused + (said.get("refusal") or "")
        self._finish = choice.get("finish_reason") or self._finish
        matched = choice.get("matched_stop")
        self._matched = choice.get("stop_reason") if matched is None else matched
        self._captures = choice.get("captures", self._captures)
        if self._logprobs is not None:
            self._logprobs += _logprobs(choice.get("logprobs"))
        return bool(new)

    def partial(self) -> Completion:
        """The completion so far, with what the server has counted already."""
        meta: dict[str, Any] = {"reasoning_content": self._reasoning} if self._reasoning else {}
        if self._logprobs is not None:
            meta["output_token_logprobs"] = self._logprobs
        usage = self._usage
        return Completion(
            self._text,
            prompt_tokens=usage.get("prompt_tokens") or 0,
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            completion_tokens=usage.get("completion_tokens") or 0,
            meta=meta,
        )

    def completion(self, latency_s: float) -> Completion:
        """The whole completion. Raises RequestError if the answer ended before it did, RefusalError
        if it is a refusal, and FilterError if a filter withheld it."""
        if self._finish is None:
            raise cut_off()
        check_said(self._finish, self._refusal, self._text)
        meta: dict[str, Any] = {"id": self._id, "e2e_latency": latency_s}
        if self._reasoning:
            meta["reasoning_content"] = self._reasoning
        if self._captures is not None:
            meta["captures"] = self._captures
        if self._logprobs is not None:
            meta["output_token_logprobs"] = self._logprobs
        thinking = self._usage.get("completion_tokens_details") or {}
        if thinking.get("reasoning_tokens"):
            meta["reasoning_tokens"] = thinking["reasoning_tokens"]
        details = self._usage.get("prompt_tokens_details") or {}
        if details.get("image_tokens"):
            meta["media_tokens"] = details["image_tokens"]
        return Completion(
            self._text,
            self._finish,
            self._matched,
            prompt_tokens=self._usage.get("prompt_tokens") or 0,
            cached_tokens=details.get("cached_tokens") or 0,
            completion_tokens=self._usage.get("completion_tokens") or 0,
            meta=meta,
        )


def cut_off() -> RequestError:
    """The error of a stream that ended before its answer did."""
    message = "the server closed the stream before the end"
    return RequestError(message, code=UNAVAILABLE, retryable=True)


def check_said(finish: str, refusal: str, text: str) -> None:
    """Raise RefusalError for an answer that is a refusal, FilterError for one that was withheld."""
    if refusal:
        raise RefusalError(f"the model refused to answer: {refusal!r}", refusal)
    if finish == "content_filter":
        raise FilterError("a filter withheld the answer (content_filter)", finish, text)


def parts_of(content: Any) -> tuple[str, str, str]:
    """The text, the thoughts and the refusal of a message's content: a text, nothing, or a list of
    parts. Raises TypeError for another one."""
    if content is None or isinstance(content, str):
        return content or "", "", ""
    if not isinstance(content, list):
        raise TypeError("content that is a text or a list")
    texts, thoughts, refusals = [], [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part["type"] in ("text", "output_text"):
            texts.append(part["text"])
        elif part["type"] == "thinking":
            inner = part["thinking"]
            thoughts.append(inner if isinstance(inner, str) else parts_of(inner)[0])
        elif part["type"] == "refusal":
            refusals.append(part["refusal"])
    return "".join(texts), "".join(thoughts), "".join(refusals)


def answers_of(payload: Any, count: int, has_logprobs: bool, latency_s: float) -> list[Completion]:
    """The completions of an answer with `count` choices, in their order; the first has all tokens
    of the request. Raises what `Answer` raises, and RequestError for another number of choices."""
    try:
        choices = sorted(payload["choices"], key=lambda choice: choice.get("index", 0))
    except (KeyError, TypeError, AttributeError) as exc:
        message = f"the server's answer has no {exc}, or not of the expected form"
        raise RequestError(message, code=INTERNAL) from exc
    if len(choices) != count:
        message = f"the server gave {len(choices)} choices for n={count}"
        raise RequestError(message, code=INTERNAL)
    made = []
    for i, choice in enumerate(choices):
        answer = Answer(has_logprobs)
        answer.take(
            {**payload, "choices": [choice], "usage": payload.get("usage") if not i else {}}
        )
        made.append(answer.completion(latency_s))
    return made


def _logprobs(part: Any) -> list[list[Any]]:
    """The tokens of either route, as [log-probability, None for the unknown id, text]."""
    if not part:
        return []
    if part.get("content") is not None:
        return [[token["logprob"], None, token["token"]] for token in part["content"]]
    pairs = zip(part["token_logprobs"], part["tokens"], strict=True)
    return [[logprob, None, token] for logprob, token in pairs]


def scores_of(payload: Any, continuations: Sequence[str]) -> Scores:
    """Scores from the echoes of a prompt, and of the prompt with each continuation, in that order.

    The tokens after their common beginning count. An empty prompt has no echo, and then all tokens
    count. Raises RequestError for an answer of another form.
    """
    try:
        choices = sorted(payload["choices"], key=lambda choice: choice.get("index", 0))
        tokens = [choice["logprobs"]["tokens"] for choice in choices]
        logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices]
        usage = payload.get("usage") or {}
    except (KeyError, TypeError, AttributeError) as exc:
        raise RequestError(f"the answer to an echo has no {exc}", code=INTERNAL) from exc
    extra = len(choices) - len(continuations)
    if extra not in (0, 1):
        raise RequestError(f"the answer to an echo has {len(choices)} choices", code=INTERNAL)
    same = takewhile(lambda column: len(set(column)) == 1, zip(*tokens, strict=False))
    common = sum(1 for _ in same) if extra else 0
    rows = [row[common:] for row in logprobs[extra:]]
    scored = [
        Scored(text, (-1,) * len(row), tuple(row))
        for text, row in zip(continuations, rows, strict=True)
    ]
    details = usage.get("prompt_tokens_details") or {}
    prompt_tokens = len(tokens[0]) if extra else 0
    return Scores(tuple(scored), prompt_tokens, details.get("cached_tokens") or 0)
