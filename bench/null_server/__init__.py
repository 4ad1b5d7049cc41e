"""The whole server without a model: see `null_launch`."""
