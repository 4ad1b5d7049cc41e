"""Runs the compile worker; started by the supervisor only."""

from scheduler_proc.grammar.worker.actor import CompilerActor
from srt.ring.actor import run_actor

run_actor(CompilerActor)
