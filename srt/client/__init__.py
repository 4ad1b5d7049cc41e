"""Clients of a server: `AsyncClient`, over the ring's sockets or over HTTP."""
