"""The server's own operations and facts: health, metrics, flush, pause, profiles."""
