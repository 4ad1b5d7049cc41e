"""How classes of requests share the steps of the scheduler core."""
