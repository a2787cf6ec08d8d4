"""`inferway bench chat-overhead`: the same tokens as chat and as completion -> the time between."""
