"""The kinds of objects in requests: which of their fields are not honoured, or unknown."""
