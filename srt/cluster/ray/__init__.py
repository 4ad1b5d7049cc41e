"""Agents that Ray starts: it finds the machines and starts actors there again, each of which keeps
an agent. What agents do goes past Ray: they talk to the head's hub.

`options` is what the launcher is asked for, `launching` its part, `driver` the process that talks
to Ray, `node` the actor, and `kept_agent` the agent's process on a node.
"""
