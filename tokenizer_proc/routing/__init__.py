"""Which replica gets a request: no I/O, no clock."""
