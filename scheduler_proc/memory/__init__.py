"""KV memory: the slots and their owners, and the radix tree that keeps prefixes."""
