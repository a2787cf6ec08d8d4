"""What is known of the engines' caches -> files in `state_dir`, and back at the next start."""
