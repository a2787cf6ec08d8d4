"""An engine's KV-event bytes -> index operations; pure."""
