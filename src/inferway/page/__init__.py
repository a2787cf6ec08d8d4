"""The page for operators, below HTTP: its files, what it shows, and who is logged in to it.

files      what a browser loads once
sessions   who has logged in
guesses    wrong keys, and who may try again when
rows       what it shows of an engine, of a request, and as an alarm
timeline   requests over time, by what was reachable, chosen and delivered
pictures   all that at one moment, and what has changed since the moment before
live       pictures to all who look, twice a second at most
"""
