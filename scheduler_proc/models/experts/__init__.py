"""Mixtures of experts on torch: which experts a token uses, and what these compute.

Used by the decoder for layers that have a mixture in place of an MLP, and by the loader.
"""
