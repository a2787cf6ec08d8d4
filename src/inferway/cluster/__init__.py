"""`inferway serve --workers`: a hub that follows the engines, and workers that answer requests; and
the bus by which processes and gateways tell each other what they do."""
