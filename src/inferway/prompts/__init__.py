"""A parsed request -> the token ids that the engine will see."""
