"""What pages see of the server while it works: gathered only while one watches."""
