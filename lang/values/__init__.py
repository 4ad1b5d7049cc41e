"""Values of what gens wrote: types as constraints, and schemas of types."""
