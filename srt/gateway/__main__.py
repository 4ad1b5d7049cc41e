"""Runs the gateway process; started by the supervisor only."""

from srt.actor import run_actor
from srt.gateway.actor import GatewayActor

run_actor(GatewayActor)
