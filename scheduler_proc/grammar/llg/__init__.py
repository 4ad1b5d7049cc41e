"""The back end `llguidance`: JSON schemas, EBNF, structural tags."""
