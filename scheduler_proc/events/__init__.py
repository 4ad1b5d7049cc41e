"""Publishes changes of the radix tree to routers."""
