"""Causal language models of transformers over our ragged batches and KV pool.

`model` is what the torch executor runs: the class of transformers computes everything but
attention, for which it calls `attention`. It takes all tokens of a batch for one sequence; `checks`
makes sure, once at load, that nothing but attention then carries anything from token to token.
"""
