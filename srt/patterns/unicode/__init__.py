"""Tables of Unicode that Python has not."""
