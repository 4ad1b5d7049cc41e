"""Tool calls as text: one format for the prompt, the constraint and the parser.

The tokenizer renders tools and past calls with it, the gateway constrains and parses with it.
"""
