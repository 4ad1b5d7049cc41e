"""Programs that run on the server: sessions, their variables, and functions that are recorded."""
