"""Patterns in the syntax of Python's `re`, read into a syntax tree.

The grammars' automata are built from it, and the search for what stops an output.
"""
