"""The processes of the ring and their sockets: starting, watching, sending, logging."""
