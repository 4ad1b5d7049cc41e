"""What the families of models write into config.json: one reader per family, over shared keys.

A reader knows the defaults of its own class in transformers (files leave out what equals them) and
what that class computes with; `json_config` picks it by architecture.
"""
