"""Engines as pods of a cluster: list, then watch, on the HTTP client we have.

api         the API server: list and watch, tokens that change
objects     pods, pools, objectives, rewrites -> settings             pure
list_watch  one kind of object, followed for good: list, watch, again
pool        an InferencePool, or a selector, and the pods it selects
"""
