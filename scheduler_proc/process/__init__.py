"""What surrounds the core in its process: threads, messages, clocks, reports, metrics."""
