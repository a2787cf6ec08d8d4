"""This machine, the hub and the engines -> findings, each with its evidence and its cure."""
