"""Prompts as token ids: texts, chats and their templates, token healing, scores."""
