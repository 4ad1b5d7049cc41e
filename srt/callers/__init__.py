"""Callers: who requests are from, and what each may take of what all share."""
