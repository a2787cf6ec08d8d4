"""The page for operators.

files      what a browser loads once
routes     its paths, and who logs in to it
rows       what it shows of an engine and of a request
timeline   requests over time, by what was reachable, chosen and delivered
pictures   all that at one moment, and what has changed since the moment before
live       pictures to all who look, twice a second at most
"""
