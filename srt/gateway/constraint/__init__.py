"""The request fields that constrain an answer, and the one constraint they make."""
