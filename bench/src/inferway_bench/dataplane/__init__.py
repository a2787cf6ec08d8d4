"""The CPU time, latency and memory that it costs to stand between clients and engines."""
