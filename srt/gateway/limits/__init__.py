"""Who may ask for how much: API keys, tenants, and memory for large bodies."""
