"""Plugins that add columns."""
