"""What one API key takes from another, measured on a server. See `__main__`."""
