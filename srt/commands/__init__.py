"""The command `srt`: what each of its words does. `python -m srt` is the same."""
