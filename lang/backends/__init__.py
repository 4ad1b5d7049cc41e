"""The models that programs run on: our server, and servers with OpenAI's routes."""
