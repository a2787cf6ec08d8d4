"""llm-d's plugin types."""
