"""The pages that describe the routes."""
