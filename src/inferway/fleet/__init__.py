"""The state of the engines, and how it is learned: discovery, load, KV events. Does I/O."""
