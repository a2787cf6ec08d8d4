"""`inferway bench proxy`: what it costs to stand between clients and engines."""
