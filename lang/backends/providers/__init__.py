"""Providers with APIs of their own: prompts and answers are mapped here, and their official
packages, which are extras, do HTTP, retries and streams.
"""
