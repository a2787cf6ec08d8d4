"""Validation: a spec is valid and within limits, and an answer has its shape."""
