"""Runs the scheduler process; started by the supervisor only."""

from scheduler_proc.actor import SchedulerActor
from srt.ring.actor import run_actor

run_actor(SchedulerActor)
