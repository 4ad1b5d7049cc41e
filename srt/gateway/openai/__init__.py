"""OpenAI's routes: completions, chat completions, embeddings."""
