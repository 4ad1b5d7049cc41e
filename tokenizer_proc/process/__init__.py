"""The tokenizer process around its front: how it is made, what it sends, and who works for it."""
