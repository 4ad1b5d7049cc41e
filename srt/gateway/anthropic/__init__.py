"""Anthropic's routes: messages and the counts of their tokens."""
