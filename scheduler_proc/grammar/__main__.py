"""Runs the compile worker; started by the supervisor only."""

from scheduler_proc.grammar.actor import CompilerActor
from srt.actor import run_actor

run_actor(CompilerActor)
