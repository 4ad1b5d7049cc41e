"""Tests of the native engine's mixtures of experts, against float64."""
