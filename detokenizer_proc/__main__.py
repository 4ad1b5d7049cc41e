"""Runs the detokenizer process; started by the supervisor only."""

from srt.actor import run_actor
from detokenizer_proc.actor import DetokenizerActor

run_actor(DetokenizerActor)
