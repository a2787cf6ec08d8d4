"""`inferway serve --workers`: a hub that follows the engines, and workers that answer requests."""
