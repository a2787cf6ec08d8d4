"""Compiling specs once, in processes and threads that a costly spec cannot bring down."""
