"""Rate the candidates in [0, 1]; one file, one rule each."""
