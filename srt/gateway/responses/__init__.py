"""OpenAI's route /v1/responses."""
