"""`python -m bench.programs`: programs on the server against calls made one by one."""
