"""What all routes share: the HTTP server, bodies, event streams, disconnects."""
