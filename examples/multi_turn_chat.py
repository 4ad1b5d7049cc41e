"""A chat of several turns, each of which reuses what the turns before it computed."""

from typing import Any

import lang as sgl

TURNS = (
    "Name one animal that lives in the sea.",
    "Where in the sea does it live?",
    "What does it eat?",
)


@sgl.function
def chat(s: sgl.ProgramState, turns: tuple[str, ...]) -> None:
    s += sgl.system("You are a helpful assistant who answers in one short sentence.")
    for number, text in enumerate(turns):
        s += sgl.user(text)
        s += sgl.assistant(sgl.gen(f"answer_{number}", max_tokens=24, stop="\n"))


def main(backend: Any, turns: tuple[str, ...] = TURNS) -> dict[str, Any]:
    """The messages of the chat, and how many prompt and cached tokens each turn has."""
    s = chat.run(turns, temperature=0, backend=backend)
    calls = list(s.trace())
    return {
        "messages": s.messages(),
        "prompt_tokens": [call.prompt_tokens for call in calls],
        "cached_tokens": [call.cached_tokens for call in calls],
    }


if __name__ == "__main__":
    with sgl.command_line(__doc__) as (backend, _):
        chat = main(backend)
        for message in chat["messages"]:
            print(f"{message['role']}: {message['content']}")
        print("prompt tokens:", chat["prompt_tokens"], "of them cached:", chat["cached_tokens"])
