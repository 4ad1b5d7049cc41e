"""`AsyncClient` over a server's HTTP routes."""
