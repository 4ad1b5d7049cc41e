"""What a program's function gets: the state, its group of forks, streams of its text, pickling."""
