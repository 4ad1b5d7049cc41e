"""Media in prompts: where they stand, and what is encoded of them when."""
