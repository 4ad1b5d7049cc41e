"""What a program's function gets: its state, forks, references to variables, streams, effects."""
