"""Forked children of the tokenizer process, each with one piece of work at a time."""
