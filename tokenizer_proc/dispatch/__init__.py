"""Admitted requests on their way to the schedulers, kept until their credits come back."""
