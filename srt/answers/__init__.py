"""Tool calls as text: the same formats for the prompt, the constraint and the parser.

The tokenizer renders tools and past calls with them, the gateway constrains and parses with them.
"""
