"""Ends of constrained outputs within their limits, for grammars that show no states: a completion
that fits is known at each token, and takes over where the next one would leave none."""
