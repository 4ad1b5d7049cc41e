"""Runs the hub; started by the supervisor only."""

from srt.cluster.hub import HubActor
from srt.ring.actor import run_actor

run_actor(HubActor)
