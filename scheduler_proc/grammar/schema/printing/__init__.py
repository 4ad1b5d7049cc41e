"""Prints what a schema means for the back ends: as JSON Schema, as Lark, as one regex."""
