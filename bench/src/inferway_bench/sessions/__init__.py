"""Agents' sessions on a simulated fleet whose caches do not hold all of them."""
