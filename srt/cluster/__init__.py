"""Replicas on other machines: the hub, a part of the ring on its head, and the agents, one on each
other machine, which run the schedulers there."""
