"""The part `programs`: sessions of calls, joined by variables, run where the model is."""
