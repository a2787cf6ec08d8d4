"""The request path: from a typed request to ranked targets, and what becomes of it."""
