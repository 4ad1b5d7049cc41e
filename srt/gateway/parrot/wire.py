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
# The asynchronous calls of Parrot's client send an argument of their own.
_RETRY_TIMES = {"retry_times": Ignored("what clients do after an error is their affair")}
SESSION_KIND = Kind(
    {
        "api_key": Ignored("the header Authorization has the key"),
        "apps": Ignored("sessions are the same for all applications"),
    }
)
CALL_KIND = Kind(
    {
        **_RETRY_TIMES,
        "cache_prefix": Ignored("all prefixes are cached"),
        "fuse_fill": Ignored("text is always joined before it is encoded"),
        "model_type": OnlyNeutral(("token_id", "text"), "unknown"),
    },
    {"parameters": Kind({}, {"sampling_config": _SAMPLING})},
)
GET_KIND = Kind(_RETRY_TIMES)

Number = Annotated[int, Meta(ge=0, le=2**63 - 1, description="A random number of 63 bits.")]
Criteria = Annotated[
    str | None, Meta(description="latency, throughput, TTFT or TPOT, in any case.")
]


class ParrotSession(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /v1/session."""


class ParrotSessionAnswer(Struct, frozen=True, kw_only=True):
    """A session. Its number is the secret that opens it, as the calls of Parrot's client have no
    other; `session_auth` is the same in digits."""

    session_id: Number
    session_auth: str


class ParrotAuth(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of a GET or DELETE of a session, and of a GET of all its variables."""

    session_auth: str | None = None
    session_id: Number | None = None


class ParrotSampling(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Parrot's `sampling_config`, with its defaults, but for those that the model may have: its
    client sends every field. A `repetition_penalty` of 0 is none."""

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


class _OfSession(ParrotAuth, kw_only=True, frozen=True):
    """The fields of what is sent to a session."""

    session_id: Number


class ParrotCall(_OfSession, kw_only=True, frozen=True):
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
    output_criteria: Annotated[
        str | None, Meta(description="If given, the call begins now, not with a GET.")
    ] = None


class ParrotParamInfo(Struct, frozen=True, kw_only=True):
    """What became of a placeholder. Parrot's client reads the parameter's name as
    `parameter_name`; its documents call it `placeholder_name`."""

    parameter_name: str
    placeholder_name: str
    is_output: bool
    var_name: str
    var_id: str
    var_desc: str = ""
    var_scope: str = ""


class ParrotCallAnswer(Struct, frozen=True, kw_only=True):
    """The variables of a call, before anything runs: one entry for each placeholder. The
    `request_id` is for logs."""

    request_id: Number
    session_id: Number
    param_info: list[ParrotParamInfo]


class ParrotVar(_OfSession, kw_only=True, frozen=True):
    """The body of a POST of /v1/semantic_var."""

    var_name: str


class ParrotVarAnswer(Struct, frozen=True, kw_only=True):
    """A new variable."""

    var_id: str


class ParrotContent(ParrotAuth, kw_only=True, frozen=True):
    """The text of a variable, to set it."""

    content: str


class ParrotGet(ParrotAuth, kw_only=True, frozen=True):
    """The body of a GET of a variable."""

    criteria: Criteria = None


class ParrotText(Struct, frozen=True, kw_only=True):
    """The text of a variable."""

    content: str


class ParrotDone(Struct, frozen=True):
    """Nothing: it is done."""


class ParrotVars(Struct, frozen=True, kw_only=True):
    """The variables of a session: their names by id."""

    vars: list[dict[str, Any]]
