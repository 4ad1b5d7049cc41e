"""The primitives that ask a model: gen, select, score and separate_reasoning."""
