"""What we know of the engines, and how we learn it: discovery, load, KV events; I/O."""
