"""What a gen wrote as a value: types as constraints, schemas of types, patterns."""
