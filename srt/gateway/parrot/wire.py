"""The JSON of Parrot's routes, as its front end sends it: a thin shim over programs."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from srt.gateway.wire.fields import Ignored, Kind, OnlyNeutral
from srt.gateway.wire.native import Count, TokenId

_SAMPLING = Kind(
    {
        "n": OnlyNeutral((1,), "give each text an output of its own"),
        "best_of": OnlyNeutral((1,), "give each text an output of its own"),
        "length_penalty": OnlyNeutral((1, 0), "beam search is not supported"),
        "logit_bias": OnlyNeutral(({},), "use /v1/submit"),
    }
)
SESSION_KIND = Kind({"api_key": Ignored("the header Authorization has the key")})
CALL_KIND = Kind(
    {
        "cache_prefix": Ignored("all prefixes are cached"),
        "fuse_fill": Ignored("text is always joined before it is encoded"),
        "output_criteria": Ignored("criteria have no effect yet"),
        "model_type": OnlyNeutral(("token_id", "text"), "unknown"),
    },
    {"parameters": Kind({}, {"sampling_config": _SAMPLING})},
)


class ParrotSession(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /v1/session."""

    apps: list[str] = field(default_factory=list)


class ParrotSessionAnswer(Struct, frozen=True, kw_only=True):
    """A session, and the word that opens it."""

    session_id: str
    session_auth: str


class ParrotAuth(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of a GET or DELETE of a session."""

    session_auth: str | None = None


class ParrotSampling(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Parrot's `sampling_config`, with its defaults, but for those that the model may have."""

    temperature: float | None = None
    top_p: float | None = None
    max_gen_length: Count = 512
    ignore_tokenizer_eos: bool = False
    stop_token_ids: list[TokenId] = field(default_factory=list)
    stop_str: str | list[str] = field(default_factory=list)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None


class ParrotParameter(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A placeholder of a template. An input has one of var_id and value, or is set later."""

    name: str
    is_output: bool = False
    var_id: str | None = None
    value: str | None = None
    sampling_config: ParrotSampling | None = None


class ParrotList(ParrotAuth, kw_only=True, frozen=True):
    """The body of a GET of all variables of a session."""

    session_id: str


class ParrotCall(ParrotList, kw_only=True, frozen=True):
    """The body of /v1/semantic_call."""

    template: Annotated[str, Meta(description="Text with {{name}} for each parameter.")]
    parameters: list[ParrotParameter]
    func_name: str = ""
    models: Annotated[list[str], Meta(description="Allowed models; none: any.")] = field(
        default_factory=list
    )
    remove_pure_fill: Annotated[bool, Meta(description="Drop the text after the last output.")] = (
        True
    )


class ParrotParamInfo(Struct, frozen=True, kw_only=True):
    """What became of a placeholder."""

    placeholder_name: str
    is_output: bool
    var_name: str
    var_id: str
    var_desc: str = ""
    var_scope: str = ""


class ParrotCallAnswer(Struct, frozen=True, kw_only=True):
    """The variables of a call, before anything runs."""

    request_id: str
    param_info: list[ParrotParamInfo]


class ParrotVar(ParrotList, kw_only=True, frozen=True):
    """The body of a POST of /v1/semantic_var."""

    var_name: str


class ParrotVarAnswer(Struct, frozen=True, kw_only=True):
    """A new variable."""

    var_id: str


class ParrotContent(ParrotAuth, kw_only=True, frozen=True):
    """The text of a variable, to set it."""

    content: str
    session_id: str | None = None


class ParrotGet(ParrotAuth, kw_only=True, frozen=True):
    """The body of a GET of a variable."""

    criteria: str | None = None
    session_id: str | None = None


class ParrotText(Struct, frozen=True, kw_only=True):
    """The text of a variable."""

    content: str


class ParrotVars(Struct, frozen=True, kw_only=True):
    """The variables of a session: their names by id."""

    vars: list[dict[str, Any]]
