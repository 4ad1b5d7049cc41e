"""Vision towers: from pixels to embeddings, by the modules of transformers."""
