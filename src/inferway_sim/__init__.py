"""A simulated vLLM engine: a truth for caches and time. Shares no code with `index`."""
