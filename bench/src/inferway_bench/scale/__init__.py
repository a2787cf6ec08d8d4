"""`inferway bench scale`: one gateway process, by the number of engines behind it."""
