"""What answers hold besides text: reasoning and tool calls, found while the text comes.

Tool calls have the same formats for the prompt, the constraint and the parser: the tokenizer
renders tools and past calls with them, the gateway constrains and parses with them.
"""
