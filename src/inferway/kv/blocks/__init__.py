"""token ids -> block keys; pure."""
