"""The JSON of all routes, as structs, and the classes of their fields."""
