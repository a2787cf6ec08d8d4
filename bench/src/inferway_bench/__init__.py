"""Benchmarks: trace or load in, measurements out, a report that says where they came from."""
