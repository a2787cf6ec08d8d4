"""Whether our token ids are the engine's: what is asked, and what a difference tells."""
