"""What asks a model: gen, select, score, separate_reasoning, and how their answers are read."""
