"""Plugins that rate endpoints."""
