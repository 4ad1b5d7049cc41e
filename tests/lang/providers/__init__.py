"""Back ends of providers, on local servers that speak their formats and fail on order."""
