"""Model families: configuration, checkpoint reading, and the forward pass over ragged tokens."""
