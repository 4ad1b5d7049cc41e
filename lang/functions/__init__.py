"""Programs: decorated functions, their runs in threads and on loops, batches, constant prefixes."""
