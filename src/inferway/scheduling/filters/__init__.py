"""Narrow the candidates; one file, one rule each."""
