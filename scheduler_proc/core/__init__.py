"""The scheduler core: decides what each step computes, without I/O, clock or thread."""
