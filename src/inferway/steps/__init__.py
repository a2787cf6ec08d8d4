"""The steps of the request path that are more than a line; `director` puts them in order."""
