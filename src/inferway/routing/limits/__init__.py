"""Limits of requests: callers, places, the queue, ejected engines, further tries. Pure."""
