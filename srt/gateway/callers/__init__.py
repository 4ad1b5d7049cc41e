"""Who calls: API keys, and tenants, which share the gateway's one client of the ring."""
