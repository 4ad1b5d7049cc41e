"""Offline use: an engine with a server of its own, and a progress bar."""
