"""The options of the server: what there is (`table`), and where each gets its value: the command
line before the environment before a file before the default (`settings`)."""
