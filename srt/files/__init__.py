"""A model's files: finding them, reading GGUF and Hugging Face formats, its vocabulary."""
