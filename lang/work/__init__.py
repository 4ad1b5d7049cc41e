"""Performing a stream's primitives in order, in forks side by side, and joining them."""
