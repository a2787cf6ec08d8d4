"""Models whose layers keep their KV cache in several groups, as vLLM's hybrid models do."""
