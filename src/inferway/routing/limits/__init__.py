"""Limits of which request may go where, and when: callers, limits, the queue, ejected engines,
further tries. Pure."""
