"""Endpoint picker -> what it costs, beside one that decides nothing."""
