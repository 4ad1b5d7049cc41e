"""What one run of a function consists of: its program and the streams of its states."""
