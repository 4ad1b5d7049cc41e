"""Mixtures of experts of random weights: their files, and their speed beside llama.cpp's."""
