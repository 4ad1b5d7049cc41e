"""The waiting queue: whose request comes next, and whom it may pass."""
