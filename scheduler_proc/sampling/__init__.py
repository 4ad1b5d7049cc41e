"""Turns logits into tokens on torch: restrictions, penalties, sampling, log-probabilities."""
