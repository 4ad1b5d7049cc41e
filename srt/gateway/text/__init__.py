"""Routes about texts: tokens, scores, tool calls and reasoning in texts from elsewhere."""
