"""Untrusted jobs: each gives its result, or the limit it was killed for."""
