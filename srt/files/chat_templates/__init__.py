"""Chat templates that a server can be given in place of the model's own (`--chat-template`).

Those of the folder are for models that were trained without one, each written from the format that
its authors published. They write no `bos_token` at the head: `load_vocab` puts one there for models
whose prompts begin with it.
"""

import re
from pathlib import Path

from srt.wire.errors import ConfigError, quoted

MAX_BYTES = 1024 * 1024
_FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.jinja")))
# What ends a turn where it is not the model's own EOS token.
END_TEXTS = {
    "chatml": ("<|im_end|>",),
    "dolly": ("### End",),
    "stablelm": ("<|USER|>", "<|SYSTEM|>", "<|ASSISTANT|>"),
}
# What a model's name says of the format that it was trained with, the first that fits.
_TRAINED_WITH = (
    (r"stable[-_]?vicuna", ""),  # "### Human:", which none of ours writes
    (r"nous-hermes-(llama-?2-)?\d+b", "alpaca"),
    (r"vicuna|wizardlm.*(13b|70b)", "vicuna"),
    (r"llama[-_ ]?2.*chat", "llama-2"),
    (r"alpaca", "alpaca"),
    (r"koala", "koala"),
    (r"dolly", "dolly"),
    (r"oasst|open[-_ ]?assistant", "openassistant"),
    (r"zephyr", "zephyr"),
    (r"stablelm.*tuned", "stablelm"),
    (r"chatml|hermes|dolphin|openorca", "chatml"),
)


def chosen_template(chosen: str) -> tuple[str, bool] | None:
    """The text of the template `chosen`, one of `NAMES` or the path of a Jinja file, and whether it
    is one of ours. None for "", which is the model's own.

    Raises ConfigError with one line that names the option.
    """
    if not chosen:
        return None
    if chosen in NAMES:
        return (_FOLDER / f"{chosen}.jinja").read_text(encoding="utf-8"), True
    path = Path(chosen)
    try:
        if not path.is_file():
            raise ConfigError(
                f"--chat-template {quoted(chosen)} is neither a file nor one of {', '.join(NAMES)}"
            )
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"--chat-template {quoted(chosen)} has more than {MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig"), False
    except (OSError, ValueError) as error:  # also what is not UTF-8, and a path with a null
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--chat-template {quoted(chosen)} cannot be read: {reason}") from error


def template_advice(model_name: str) -> str:
    """Which option gives a chat template to a model that has none."""
    named = (name for words, name in _TRAINED_WITH if re.search(words, model_name, re.IGNORECASE))
    if name := next(named, ""):
        return f"--chat-template {name} gives it the one that its name suggests"
    return f"--chat-template gives it one: a Jinja file, or one of {', '.join(NAMES)}"
