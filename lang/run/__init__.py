"""What one run of a function consists of: its program, the streams of its states, its trace."""
