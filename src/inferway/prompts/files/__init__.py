"""The files of models: found, fetched, bounded, tried and read."""
