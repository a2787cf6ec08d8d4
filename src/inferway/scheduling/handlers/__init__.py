"""Choose among profiles; one file, one rule each."""
