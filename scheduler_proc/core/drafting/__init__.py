"""Speculative decoding: guesses how requests go on, which the model then verifies."""
