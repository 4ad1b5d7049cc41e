"""`python -m bench.machines`: what a replica behind an agent costs beside a local one."""
