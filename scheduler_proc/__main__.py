"""Runs the scheduler process; started by the supervisor only."""

from srt.actor import run_actor
from scheduler_proc.actor import SchedulerActor

run_actor(SchedulerActor)
