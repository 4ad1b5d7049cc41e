"""Patterns as trees: read from the syntaxes of Python's `re`, ECMA-262 and GBNF, written as regular
expressions or Lark; and what searches a text for them.

The grammars' automata are built from the trees, and so are the search for what stops an output and
the places of named groups.
"""
