"""Runs the detokenizer process; started by the supervisor only."""

from detokenizer_proc.actor import DetokenizerActor
from srt.ring.actor import run_actor

run_actor(DetokenizerActor)
