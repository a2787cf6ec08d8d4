"""Policies on one simulated fleet in virtual time: requests in -> when each answer began."""
