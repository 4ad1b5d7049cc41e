"""Random programs for a real server, and what the same calls give one by one."""

import random
from collections.abc import Mapping
from typing import Any

from srt.client.face import AsyncClient
from srt.wire.messages import ChatMessage, ChatOptions
from srt.wire.programs import (
    Call,
    Concat,
    First,
    Format,
    Guard,
    Input,
    Join,
    Op,
    Output,
    Program,
    Segment,
    Split,
    Strip,
    Text,
    Transform,
    Truncate,
    Turn,
    VarInfo,
)
from srt.wire.sampling import SamplingParams

OPENINGS = ("The capital of France is", "Once upon a time", "Q: 2 + 2?\nA:", "Dear", "<|im_start|>")
BAD = SamplingParams(regex="(unclosed")


def random_program(rng: random.Random) -> Program:
    """A chain, a fan and a join of texts and chats, with guards and with calls that fail."""
    usable = ["given", "late"]
    calls: list[Call] = []
    transforms: list[Transform] = []
    for i in range(rng.randrange(2, 7)):
        name = f"v{i}"
        guard = random_guard(rng, usable) if rng.random() < 0.2 else None
        if rng.random() < 0.6:
            call = random_call(rng, usable, name, guard)
            calls.append(call)
            usable += [each.var for each in segments_of(call) if isinstance(each, Output)]
        else:
            op = random_op(rng, usable)
            transforms.append(Transform(name, op, guard, rng.choice([None, "instead"])))
            usable.append(name)
    rng.shuffle(calls)
    return Program({"given": "<|im_end|> and so on", "late": None}, calls, transforms)


def random_sampling(rng: random.Random) -> SamplingParams:
    if rng.random() < 0.1:
        return BAD
    tokens = rng.randrange(1, 8)
    if rng.random() < 0.2:
        return SamplingParams(max_new_tokens=16, temperature=0.0, regex=" [A-Z][a-z]{2,6}")
    if rng.random() < 0.3:
        return SamplingParams(max_new_tokens=tokens, seed=rng.randrange(100), top_k=20)
    return SamplingParams(max_new_tokens=tokens, temperature=0.0)


def random_call(rng: random.Random, usable: list[str], name: str, guard: Guard | None) -> Call:
    if rng.random() < 0.3:
        turns = [Turn("user", [Text("Say: "), Input(rng.choice(usable))])]
        turns.append(Turn("assistant", [Output(f"{name}.0", random_sampling(rng))]))
        if rng.random() < 0.5:
            turns.append(Turn("user", [Text("Again, about "), Input(rng.choice(usable))]))
            turns.append(
                Turn("assistant", [Text("Well,"), Output(f"{name}.1", random_sampling(rng))])
            )
        return Call(turns=turns, when=guard)
    segments: list[Segment] = [Text(rng.choice(OPENINGS))]
    for i in range(rng.randrange(1, 3)):
        if rng.random() < 0.7:
            segments.append(Input(rng.choice(usable), literal=rng.random() < 0.5))
        default = rng.choice([None, None, " nothing"])
        if rng.random() < 0.2:
            choices = [" yes", " no", " perhaps not"]
            segments.append(Output(f"{name}.{i}", choices=choices, default=default))
        else:
            segments.append(Output(f"{name}.{i}", random_sampling(rng), default=default))
        segments.append(Text("\nThen"))
    return Call(segments, when=guard)


def random_op(rng: random.Random, usable: list[str]) -> Op:
    several = [rng.choice(usable) for _ in range(rng.randrange(1, 4))]
    leaves = rng.random() < 0.5
    ops: list[Op] = [
        Join(several, "\n", leaves),
        Concat(several, leaves),
        First(several),
        Format("<{a}>", {"a": several[0]}),
        Strip(several[0]),
        Split(several[0], " ", -1),
        Truncate(several[0], chars=5),
    ]
    return rng.choice(ops)


def random_guard(rng: random.Random, usable: list[str]) -> Guard:
    return Guard(rng.choice(usable), matches="e", negate=rng.random() < 0.3)


def segments_of(call: Call) -> list[Segment]:
    return [*call.segments, *(each for turn in call.turns for each in turn.content)]


async def check_calls(client: AsyncClient, program: Program, found: Mapping[str, VarInfo]) -> int:
    """Each output that was made is, token for token, what its call gives alone: the texts of the
    other variables are taken as they are. Returns how many there were."""
    num_checked = 0
    for call in program.calls:
        for output in segments_of(call):
            if not isinstance(output, Output):
                continue
            var = found[output.var]
            if var.state == "ready" and var.meta is not None and var.error is None:
                num_checked += 1
                alone = await made_alone(client, call, output, found)
                meta = var.meta
                assert (var.text, meta.prompt_tokens, meta.completion_tokens) == alone, output.var
            elif output.sampling == BAD and not output.choices and var.state != "cancelled":
                inputs = {each.var for each in segments_of(call) if isinstance(each, Input)}
                are_there = all(found[name].state == "ready" for name in inputs)
                if are_there and var.state != "skipped" and var.text != output.default:
                    assert var.state == "failed" and var.error is not None
    return num_checked


async def made_alone(
    client: AsyncClient, call: Call, output: Output, found: Mapping[str, VarInfo]
) -> tuple[str, int, int]:
    """Text, prompt tokens and completion tokens of an output by a request of its own."""

    def text_of(segment: Segment) -> str:
        return segment.text if isinstance(segment, Text) else found[segment.var].text

    request: dict[str, Any] = {}
    if call.turns:
        messages = []
        for turn in call.turns:
            before = turn.content[: place_of(output, turn.content)]
            content = "".join(map(text_of, before))
            if len(before) < len(turn.content):
                if content:
                    messages.append(ChatMessage(turn.role, content))
                    request["chat"] = ChatOptions(continue_final=True)
                break
            messages.append(ChatMessage(turn.role, content))
        request["messages"] = messages
    else:
        text, spans = "", []
        for segment in call.segments[: place_of(output, call.segments)]:
            piece = text_of(segment)
            if segment.literal and piece:
                spans.append((len(text), len(text) + len(piece)))
            text += piece
        request |= {"text": text, "literal_spans": spans}
    if output.choices:
        scores = await client.score(continuations=output.choices, **request)
        means = [choice.mean for choice in scores.choices]
        return output.choices[means.index(max(means))], scores.prompt_tokens, 0
    whole = await client.generate(sampling=output.sampling, **request)
    return whole.text, whole.prompt_tokens, whole.completion_tokens


def place_of(output: Output, segments: list[Segment]) -> int:
    """Where it is among them; their number if it is not."""
    return next((i for i, each in enumerate(segments) if each is output), len(segments))
