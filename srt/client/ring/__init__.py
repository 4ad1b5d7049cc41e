"""`AsyncClient` over the sockets of a ring."""
