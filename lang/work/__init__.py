"""Performs a stream's primitives in order, and its forks side by side, and joins them."""
