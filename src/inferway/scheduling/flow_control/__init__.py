"""llm-d's flow control: what its section of a configuration says of whose turn it is, and the
plugins that it names. routing/limits keeps to it."""
