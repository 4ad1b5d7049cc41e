"""The text of a state, with its turns and media: all that a prompt is made of."""

from copy import copy
from typing import Any

from lang.backends.base import Image, Prompt, Turn
from lang.backends.shown import data_url, message_of
from lang.chat_template import ChatTemplate


class Transcript:
    """What has been said in a state. A fork's continues its parent's, whose parts end at the places
    `start_chars`, the last of `fork_turns`, and `start_images`."""

    def __init__(self) -> None:
        self.text = ""
        self.messages: list[Turn] = []
        self.role = ""
        self.role_start = 0
        self.literal: list[tuple[int, int]] = []  # parts of the text that closed roles hold
        self.said_default_system = False
        self.images: list[tuple[int, Image]] = []  # with their places in the text
        self.start_chars = self.start_images = 0
        self.fork_turns: tuple[int, ...] = ()  # the numbers of closed turns at each fork up to here

    def __copy__(self) -> "Transcript":
        made = Transcript()
        made.__dict__ |= self.__dict__
        made.messages, made.images = self.messages.copy(), self.images.copy()
        made.literal = self.literal.copy()
        return made

    def fork(self) -> "Transcript":
        """One that continues from here."""
        made = copy(self)
        made.start_chars = len(self.text)
        made.fork_turns = (*self.fork_turns, len(self.messages))
        made.start_images = len(self.images)
        return made

    def append_all_of(self, child: "Transcript") -> None:
        """Append all that `child` has added since it began."""
        moved, start = len(self.text) - child.start_chars, child.start_chars
        self.literal += [
            (max(begin, start) + moved, end + moved)
            for begin, end in child._literal_spans()
            if end > start
        ]
        added = child.images[child.start_images :]
        self.images += [(place + moved, image) for place, image in added]
        self.text += child.text[start:]
        self.messages += child.messages[child.fork_turns[-1] :]

    def begin_role(self, role: str, template: ChatTemplate) -> None:
        """Open a turn. Raises ValueError inside another one."""
        if self.role:
            raise ValueError(f"Nested roles are not allowed: {role!r} inside of {self.role!r}")
        default = template.default_system
        if not self.messages and role != "system" and default is not None:
            self.text += template.prefix("system") + default + template.suffix("system")
            self.said_default_system = True
        self.text += template.prefix(role)
        self.role, self.role_start = role, len(self.text)

    def end_role(self, role: str, template: ChatTemplate | None) -> None:
        """Close the open turn. Raises ValueError if it is another role's."""
        if self.role != role or template is None:
            raise ValueError(f"the role {role!r} ends, but the open one is {self.role!r}")
        content = self.text[self.role_start :].lstrip()
        start = len(self.text) - len(content)
        shown = [(place, image) for place, image in self.images if place >= self.role_start]
        places = tuple(max(0, place - start) for place, _ in shown)
        self.literal = self._literal_spans()
        self.messages.append(Turn(role, content, tuple(image for _, image in shown), places))
        self.text += template.suffix(role)
        self.role = ""

    def prompt(self) -> Prompt:
        """Everything so far, as a back end wants it."""
        open_text = self.text[self.role_start :] if self.role else ""
        return Prompt(
            self.text,
            tuple(self.messages),
            self.role,
            open_text,
            tuple(image for _, image in self.images),
            tuple(self._literal_spans()),
            tuple(place for place, _ in self.images),
            tuple(dict.fromkeys(filter(None, self.fork_turns))),
        )

    def _literal_spans(self) -> list[tuple[int, int]]:
        """The parts of the text that roles hold, the open one among them."""
        if not self.role:
            return self.literal
        before = [span for span in self.literal if span[1] <= self.role_start]
        return [*before, (self.role_start, len(self.text))]

    def openai_messages(self, template: ChatTemplate | None) -> list[dict[str, Any]]:
        """The closed turns, as OpenAI's API has them."""
        found: list[dict[str, Any]] = []
        if self.said_default_system and template is not None:
            found.append({"role": "system", "content": template.default_system})
        return [*found, *(message_of(message, _url_of) for message in self.messages)]


def _url_of(image: Image) -> str:
    return data_url("image/jpeg" if image.kind == "image" else "video/mp4", image)
