"""Reads the OpenAI routes' answers, whole or event by event, as `Completion`s and scores."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from lang.backends.base import Completion, Scored, Scores
from srt.wire.errors import INTERNAL, UNAVAILABLE, RequestError


class Answer:
    """Collects one choice. Call `take` with every payload in order, then `completion`.

    A payload without choices, such as the usage at the end of a stream, is accepted too.
    """

    def __init__(self, has_logprobs: bool) -> None:
        self._text = self._reasoning = self._id = ""
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
        new = said.get("content") or ""
        self._text += new
        self._reasoning += said.get("reasoning_content") or ""
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
        """The whole completion. Raises RequestError if the answer ended before it did."""
        if self._finish is None:
            message = "the server closed the stream before the end"
            raise RequestError(message, code=UNAVAILABLE, retryable=True)
        meta: dict[str, Any] = {"id": self._id, "e2e_latency": latency_s}
        if self._reasoning:
            meta["reasoning_content"] = self._reasoning
        if self._captures is not None:
            meta["captures"] = self._captures
        if self._logprobs is not None:
            meta["output_token_logprobs"] = self._logprobs
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
