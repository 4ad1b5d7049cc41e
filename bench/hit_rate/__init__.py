"""`python -m bench.hit_rate`: how much of the reachable reuse the scheduler gets."""
