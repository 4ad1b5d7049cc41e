"""What answers hold besides text: reasoning and tool calls, found as the text arrives.

The prompt, the constraint and the parser share one format of tool calls: the tokenizer renders
tools and past calls with it, the gateway constrains and parses with it.
"""
