"""Text -> token ids: the engine's tokenizer, faster encoders, and caches of what was encoded."""
