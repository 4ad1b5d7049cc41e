"""The JSON of a chat: its messages, and how the model's template writes them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.gateway.wire.tools import ToolCallJson, ToolIn
from srt.wire.media import MAX_FRAMES

Detail = Literal["auto", "low", "high"]
FrameCount = Annotated[int, Meta(ge=0, le=MAX_FRAMES)]
Tools = Annotated[list[ToolIn], Meta(description="Functions that the model may call.")]
BeginsAnswer = Annotated[
    bool | None,
    Meta(description="Begin the assistant's turn; the default unless the last continues."),
]
TemplateArgs = Annotated[
    dict[str, Any], Meta(description="Further variables of the chat template.")
]
ReasoningEffort = Annotated[
    str | None, Meta(description='For templates that know it; "none" turns reasoning off.')
]
Verbosity = Literal["low", "medium", "high"]
VerbosityHint = Annotated[
    Verbosity | None,
    Meta(description="low, medium or high: for templates that know it."),
]


class ImageUrl(Struct, frozen=True):
    """A picture: a `data:` URL with base64, or an http(s) URL of a host that the server fetches
    from."""

    url: str
    detail: Detail = "auto"


class VideoUrl(Struct, frozen=True):
    """A video, as vLLM and SGLang name it; `num_frames` of it are shown, 0 is the model's
    default."""

    url: str
    num_frames: FrameCount = 0


class ContentPart(Struct, frozen=True):
    """A part of a message, of type "text", "image_url" or "video_url"; the others are refused by
    name."""

    type: str
    text: str | UnsetType = UNSET
    image_url: ImageUrl | UnsetType = UNSET
    video_url: VideoUrl | UnsetType = UNSET


class Message(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A message of a chat."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        Meta(description='"developer" is the newer word for "system".'),
    ]
    content: Annotated[
        str | list[ContentPart] | None,
        Meta(description="A text or parts; assistant, tool: may be null."),
    ] = None
    tool_calls: Annotated[
        list[ToolCallJson] | None, Meta(description="assistant: the calls that it made.")
    ] = None
    tool_call_id: Annotated[str, Meta(description="tool: the call that this answers.")] = ""
    name: Annotated[
        str, Meta(description="tool: the function called. Others: for templates that use it.")
    ] = ""
    reasoning_content: Annotated[
        str, Meta(description="assistant: for templates that use it; others leave it out.")
    ] = ""
    reasoning: Annotated[str, Meta(description="The same; reasoning_content goes before it.")] = ""


class PredictedText(Struct, frozen=True):
    """A part of a predicted answer."""

    type: Literal["text"]
    text: str


class Prediction(Struct, forbid_unknown_fields=True, frozen=True):
    """What the answer will mostly be: a text or parts."""

    type: Literal["content"]
    content: str | list[PredictedText]

    @property
    def text(self) -> str:
        """The whole of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


PredictionIn = Annotated[
    Prediction | None,
    Meta(
        description="What the answer to the one prompt will mostly be: tokens are guessed from it "
        "first."
    ),
]


class ChatFields(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A chat as a prompt; the other fields go with messages only."""

    messages: Annotated[
        list[Message] | None, Meta(description="A chat, which the model's template writes.")
    ] = None
    tools: Annotated[
        list[ToolIn], Meta(description="Functions that the template describes to the model.")
    ] = field(default_factory=list)
    add_generation_prompt: BeginsAnswer = None
    continue_final_message: Annotated[
        bool, Meta(description="The answer continues the last message.")
    ] = False
    chat_template_kwargs: TemplateArgs = field(default_factory=dict)
    reasoning_effort: ReasoningEffort = None
    verbosity: VerbosityHint = None
