"""What each part of the work on programs is worth: the gain of programs over a client that calls
one by one, with all parts and without one of them.

A server runs without prompts ahead of time, without the policy `app`, or without placement by
cached prefixes. Without groups, or without any hints, the calls are made one by one beside the
server: as it would, and with one round trip.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from bench.programs import crowds, replicas
from bench.programs.crowds import Draw, Way, as_program, called_near
from bench.programs.pairs import Benches, spread

COLUMNS = ("without", "chains", "map-reduces", "chain beside chats")
PLACED_COLUMNS = ("without", *replicas.COLUMNS)


class Variant(NamedTuple):
    """Options of a server beside those that all have, and whether it is near and has hints."""

    name: str
    options: Sequence[str] = ()
    hints: bool | None = None  # of calls that are made one by one; None: it runs programs


VARIANTS = (
    Variant("nothing"),
    Variant("work ahead", ("--programs-ahead", "off")),
    Variant("the policy `app`", ("--schedule-policy", "lpm")),
    Variant("groups", hints=True),
    Variant("hints", hints=False),
)
PLACED = (Variant("nothing"), Variant("placement", ("--router-policy", "least-loaded")))


async def ablation(
    benches: Benches, args: argparse.Namespace, *, variant: Variant
) -> list[list[str]]:
    """A row of ratios, as in `bench.programs.crowds`."""
    way: Way = as_program
    if variant.hints is not None:
        way = called_near(benches, with_hints=variant.hints)
    rate = crowds.CHAT_LOAD * await crowds.chat_capacity(benches.near)
    draws: tuple[Draw, ...] = (
        crowds.chains(args.crowd),
        crowds.map_reduces(args.crowd),
        crowds.beside_chats(rate),
    )
    found = [await crowds.crowds(benches.far, draw, way) for draw in draws]
    return [[variant.name, *(spread([each.ratio for each in one]) for one in found)]]


async def placed(
    benches: Benches, args: argparse.Namespace, *, variant: Variant
) -> list[list[str]]:
    """The rows of `bench.programs.replicas`."""
    return [[variant.name, *row] for row in await replicas.mixed(benches, args)]
