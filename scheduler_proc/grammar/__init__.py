"""Constraints on outputs: from a pattern, schema or grammar to the tokens allowed at each step.

The compile worker turns a `Constraint` into a `CompiledGrammar` and leaves it as a file; the
scheduler loads it and gives each req a `Grammar` of its own. Nothing here imports torch.
"""
