"""Caches: the keys of blocks, the index of their holders, and the engines' events that fill it."""
