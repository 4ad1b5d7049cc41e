"""The back end `fsm`: automata over the vocabulary, with masks by state."""
