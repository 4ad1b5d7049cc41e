"""Constraints in the forms that providers' strict modes take, and their answers read back."""
