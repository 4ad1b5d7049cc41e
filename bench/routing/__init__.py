"""`python -m bench.routing`: how well requests are placed on replicas."""
