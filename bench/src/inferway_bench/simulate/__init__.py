"""`inferway bench simulate`: a trace, a fleet and policies in virtual time."""
