"""Admission of requests: their checks, their grammars, and the bounds on what is in flight."""
