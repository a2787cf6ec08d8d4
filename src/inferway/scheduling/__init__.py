"""Candidates -> decision: filters narrow, scorers rate, a picker chooses; pure."""
