"""Fair shares of the model and of its memory among callers: no I/O, no clock."""
