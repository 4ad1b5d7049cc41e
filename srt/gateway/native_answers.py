"""Words the answers of /generate: snapshots as SGLang's response fields."""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from srt.gateway.wire_native import FinishReason, LogprobEntry, MetaInfo, NativeResponse
from srt.generation import GenerateOutput, Request
from srt.messages import Finish
from srt.model.vocab import Vocab

Rows = list[list[LogprobEntry] | None]


class NativeAnswers:
    """The words for the answers to `requests`, which have `samples` answers each, prompt after
    prompt.

    `prompt_ids` are the ids of each prompt, if the answers are to tell them; `texts` the vocabulary
    from which log-probabilities get the texts of their tokens, if they are to have any.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        samples: int,
        prompt_ids: Sequence[list[int]],
        texts: Vocab | None,
    ) -> None:
        self._requests = requests
        self._samples = samples
        self._prompt_ids = prompt_ids
        self._texts = texts

    def response(self, index: int, output: GenerateOutput, latency_s: float) -> NativeResponse:
        """The answer number `index`, so far."""
        prompt = index // self._samples
        request = self._requests[prompt]
        meta = MetaInfo(
            id=output.rid,
            finish_reason=_finish_reason(output.finish, output.completion_tokens),
            prompt_tokens=output.prompt_tokens,
            completion_tokens=output.completion_tokens,
            cached_tokens=output.cached_tokens,
            e2e_latency=latency_s,
            jump_forward_tokens=output.jump_forward_tokens,
            forward_passes=output.forward_passes,
            healed_tokens=output.healed_tokens,
        )
        if request.return_logprob:
            meta = self._with_logprobs(meta, request, output)
        return NativeResponse(
            text=output.text,
            output_ids=output.output_ids,
            meta_info=meta,
            prompt_token_ids=self._prompt_ids[prompt] if self._prompt_ids else UNSET,
        )

    def _with_logprobs(self, meta: MetaInfo, request: Request, output: GenerateOutput) -> MetaInfo:
        inputs = output.prompt_logprobs or []
        outputs = zip(output.output_logprobs or [], output.output_ids, strict=False)
        known = [logprob for logprob, _ in inputs if logprob is not None]
        meta = replace(
            meta,
            input_token_logprobs=[self._entry(*pair) for pair in inputs],
            output_token_logprobs=[self._entry(*pair) for pair in outputs],
            normalized_prompt_logprob=sum(known) / len(known) if known else None,
        )
        if request.top_logprobs:
            meta = replace(
                meta,
                input_top_logprobs=self._rows(output.prompt_top_logprobs),
                output_top_logprobs=self._rows(output.output_top_logprobs),
            )
        ids = request.logprob_token_ids
        if ids:
            meta = replace(
                meta,
                input_token_ids_logprobs=self._rows(_paired(output.prompt_id_logprobs, ids)),
                output_token_ids_logprobs=self._rows(_paired(output.output_id_logprobs, ids)),
            )
        return meta

    def _rows(self, rows: Sequence[list[tuple[float, int]] | None] | None) -> Rows:
        return [None if row is None else [self._entry(*pair) for pair in row] for row in rows or []]

    def _entry(self, logprob: float | None, token: int) -> LogprobEntry:
        if self._texts is None:
            return (logprob, token, None)
        return (logprob, token, self._texts.decode([token], skip_special_tokens=False))


def _paired(
    rows: Sequence[list[float] | None] | None, ids: Sequence[int]
) -> list[list[tuple[float, int]] | None]:
    return [None if row is None else list(zip(row, ids, strict=True)) for row in rows or []]


def _finish_reason(finish: Finish | None, completion_tokens: int) -> FinishReason | None:
    if finish is None:
        return None
    if finish.type == "stop":
        return FinishReason(type="stop", matched=finish.matched)
    if finish.type == "length":
        return FinishReason(type="length", length=completion_tokens)
    error = finish.error
    return FinishReason(
        type="abort",
        message=error.message if error else "aborted",
        status_code=error.http_status if error else None,
        err_type=error.code if error else None,
    )
