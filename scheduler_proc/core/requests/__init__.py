"""Requests inside the core: parameters, tokens and memory."""
