"""Milliseconds instead of weights: what a request would wait for on each endpoint, learned from
what streams through us. docs/scheduling.md has the model.

costs          features and observed times -> what each feature costs on an engine
backlog        what waits at each engine: of our requests, and of other gateways'
marginal_cost  what a request costs all others
legs           what a request costs whose prompt is computed apart from where it is answered
sharing        what gateways tell each other of all that
known          what was learned, for a gateway that has just come
follower       what becomes of one request, and what that teaches
plugin         the producer of columns, and the scorer
"""
