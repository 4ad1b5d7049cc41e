"""The inference servers that ours is measured against: how to set each up, start and stop it."""
