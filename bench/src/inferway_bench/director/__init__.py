"""`inferway bench director`: what a decision costs, and how it grows."""
