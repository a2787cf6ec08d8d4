"""Load in -> measurements -> report."""
