"""Parrot's own front end on a real server: what it sends, its package and its examples."""
