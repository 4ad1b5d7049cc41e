"""Callers: who they are, and the limits of each that the files of keys have."""
