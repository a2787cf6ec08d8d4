"""Refuse requests; one file, one rule each."""
