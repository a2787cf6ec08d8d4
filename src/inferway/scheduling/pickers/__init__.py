"""Choose among rated candidates; one file, one rule each."""
