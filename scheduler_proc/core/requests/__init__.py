"""Requests inside the core: parameters, tokens, memory, and the queue of those that wait."""
