"""`inferway bench outages`: what clients see while an engine is lost, stands still or is slow."""
