"""Answers in a shape, over HTTP: judged on their way to the client, and explained before."""
