"""Findings about this machine, the hub and the engines, each with its evidence and its cure."""
