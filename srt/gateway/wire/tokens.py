"""The JSON of /tokenize and /detokenize."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from srt.gateway.wire.chat import ChatFields
from srt.gateway.wire.fields import CHAT, Kind, OnlyNeutral
from srt.gateway.wire.native import TokenId

TOKENIZE: Kind = Kind(
    {"chat_template": OnlyNeutral(("",), "the model's own template is used")},
    {name: CHAT.nested[name] for name in ("messages", "tools")},
)


class TokenizeBody(ChatFields, kw_only=True, frozen=True):
    """The body of /tokenize. Exactly one of prompt and messages is given."""

    model: Annotated[str | None, Meta(description="The served name or path.")] = None
    prompt: Annotated[str | list[str] | None, Meta(description="A text, or several.")] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="Add what the tokenizer adds to prompts; true for texts.")
    ] = None
    return_token_strs: Annotated[bool, Meta(description="Add each token's text.")] = False


class Tokens(Struct, frozen=True, kw_only=True):
    """The answer of /tokenize; lists of lists, and of counts, for several texts."""

    tokens: Sequence[int | list[int]]
    count: int | list[int]
    max_model_len: int
    token_strs: Sequence[str | list[str]] | UnsetType = UNSET


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /detokenize."""

    tokens: Annotated[
        list[TokenId | list[TokenId]], Meta(description="Token ids, or lists of them.")
    ]
    model: Annotated[str | None, Meta(description="The served name or path.")] = None
    skip_special_tokens: Annotated[bool, Meta(description="Leave them out of the text.")] = True


class Text(Struct, frozen=True, kw_only=True):
    """The answer of /detokenize: a text, or one for each list. `prompt` is the same, as other
    servers name it."""

    text: str | list[str]
    prompt: str | list[str]
