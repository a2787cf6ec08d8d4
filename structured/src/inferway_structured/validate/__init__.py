"""Whether a spec is valid and within limits, and whether an answer has its shape."""
