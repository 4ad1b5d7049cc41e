"""Runs the tokenizer process; started by the supervisor only."""

from srt.ring.actor import run_actor
from tokenizer_proc.actor import TokenizerActor

run_actor(TokenizerActor)
