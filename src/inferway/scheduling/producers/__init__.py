"""Bring columns that others judge by; one file, one rule each."""
