"""Steps: planned rows, their arrays as a `ForwardBatch`, and what a step costs."""
