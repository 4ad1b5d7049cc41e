"""POST /tokenize and /detokenize: texts and chats to token ids, and ids to texts."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace
from starlette.types import ASGIApp

from srt.client.generation import Client, TokenizeRequest
from srt.gateway.context import HttpRequest, gateway_of, model_of
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.json_pieces import MAX_ENTRIES
from srt.gateway.http.routing import json_reply, post
from srt.gateway.http.turns import in_turns
from srt.gateway.openai.chat import OPTION_NAMES, chat_prompt
from srt.gateway.wire.tokens import TOKENIZE, DetokenizeBody, Text, TokenizeBody, Tokens
from srt.wire.errors import RequestError, renaming

MAX_PROMPTS = 1024
MAX_IDS = MAX_ENTRIES  # of one text


@post(["/tokenize", "/v1/tokenize"], TokenizeBody, Tokens, kind=TOKENIZE)
async def tokenize(request: HttpRequest) -> ASGIApp:
    """The token ids of a text, of several, or of a chat as the model's template writes it."""
    body = await read_body(request, TokenizeBody, TOKENIZE)
    gateway = gateway_of(request)
    model_of(request, body.model)
    requests = _requests(body, gateway.vocab.chat_template or "")
    rows = await while_connected(request.receive, _tokenized(gateway.client, requests, body))
    is_list = isinstance(body.prompt, list)
    counts = [len(row) for row in rows]
    answer = Tokens(
        tokens=rows if is_list else rows[0],
        count=counts if is_list else counts[0],
        max_model_len=gateway.info.context_len,
    )
    if body.return_token_strs:
        vocab = gateway.vocab
        strs = iter(await in_turns(vocab.decode([i], False) for row in rows for i in row))
        texts = [list(islice(strs, len(row))) for row in rows]
        answer = replace(answer, token_strs=texts if is_list else texts[0])
    return json_reply(answer)


def _requests(body: TokenizeBody, template: str) -> list[TokenizeRequest]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("exactly one of prompt and messages must be given", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            reason = " is not supported with messages: the template writes them"
            raise RequestError(reason, at="add_special_tokens")
        return [TokenizeRequest(**chat_prompt(body, template))]
    chat_prompt(body, template)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
    if not prompts:
        raise RequestError(" must not be empty", at="prompt")
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f" takes at most {MAX_PROMPTS} texts", at="prompt")
    special = body.add_special_tokens is not False
    return [TokenizeRequest(text=text, add_special_tokens=special) for text in prompts]


async def _tokenized(
    client: Client, requests: Sequence[TokenizeRequest], body: TokenizeBody
) -> list[list[int]]:
    rows = []
    for index, request in enumerate(requests):
        at = f"[{index}]" if isinstance(body.prompt, list) else ""
        with renaming({"text": f"prompt{at}", **OPTION_NAMES}):
            rows.append(await client.tokenize(request))
    return rows


@post(["/detokenize", "/v1/detokenize"], DetokenizeBody, Text)
async def detokenize(request: HttpRequest) -> ASGIApp:
    """The text of token ids, or of several lists of them; bytes that are no UTF-8 are U+FFFD."""
    body = await read_body(request, DetokenizeBody)
    gateway = gateway_of(request)
    model_of(request, body.model)
    _check_length(body.tokens)
    lists: list[Any] = [item for item in body.tokens if isinstance(item, list)]
    if lists and len(lists) != len(body.tokens):
        raise RequestError(" must not mix ids and lists of ids", at="tokens")
    for row in lists or [body.tokens]:
        _check_ids(row, gateway.vocab.vocab_size)
    decode, skip = gateway.vocab.decode_prompt, body.skip_special_tokens
    texts = await in_turns(decode(row, skip) for row in lists or [body.tokens])
    text = texts if lists else texts[0]
    return json_reply(Text(text=text, prompt=text))


def _check_length(ids: Sequence[Any]) -> None:
    if len(ids) > MAX_IDS:
        raise RequestError(f" takes at most {MAX_IDS} ids of one text", at="tokens")


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    _check_length(ids)
    if max(ids, default=0) >= vocab_size:
        raise RequestError(f" must be in [0, {vocab_size})", at="tokens")
