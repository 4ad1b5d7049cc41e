"""The route /generate, with SGLang's fields."""
