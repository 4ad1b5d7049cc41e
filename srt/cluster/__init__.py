"""Replicas on other machines: their keys, their clocks, and what tells their models apart."""
