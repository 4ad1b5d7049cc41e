"""Attention over the token-granular KV pool: the seam and its backends."""
