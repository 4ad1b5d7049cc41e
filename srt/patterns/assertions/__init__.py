"""Patterns with assertions as patterns without. The names below are the public ones."""

from srt.patterns.assertions.resolve import looks_at_words, whole

__all__ = ["looks_at_words", "whole"]
