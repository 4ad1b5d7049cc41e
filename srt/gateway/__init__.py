"""The gateway process: the HTTP application over a client of the ring."""
