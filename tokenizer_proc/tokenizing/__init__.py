"""Children of the tokenizer process that read requests' texts."""
