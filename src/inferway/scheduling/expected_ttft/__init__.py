"""Milliseconds instead of weights: what a request would wait for on each endpoint, learned from
what streams through us. docs/scheduling.md has the model.

costs     features and observed times -> what each feature costs on an engine
backlog   what is on its way to each engine and has not begun to answer
others    what of other gateways' requests waits there
caused    what a request costs all others
places    endpoints -> their places in the tables of all these
follower  what becomes of one request, and what that teaches
plugin    the producer of columns, and the scorer
"""
