"""Connections to engines: pool, streaming, cancellation; I/O."""
