"""Callers: who they are, the limits of each that the files of keys have, and what each holds."""
