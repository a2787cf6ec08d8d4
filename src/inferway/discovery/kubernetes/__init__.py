"""Engines as pods of a cluster: list, then watch, on the HTTP client we have.

api      the API server: list and watch, tokens that change
stream   a watch's bytes -> events; events -> what there is        pure
objects  pods, pools, objectives, rewrites -> settings             pure
follow   one kind of object, followed for good: list, watch, again
pool     an InferencePool, or a selector, and the pods it selects
"""
