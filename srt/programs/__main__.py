"""Runs the process `programs`; started by the supervisor only."""

from srt.programs.actor import ProgramsActor
from srt.ring.actor import run_actor

run_actor(ProgramsActor)
