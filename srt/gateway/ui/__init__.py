"""The page at /, and what it reads of the server."""
