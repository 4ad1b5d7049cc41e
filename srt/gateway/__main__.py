"""Runs the gateway process; started by the supervisor only."""

from srt.gateway.actor import GatewayActor
from srt.ring.actor import run_actor

run_actor(GatewayActor)
