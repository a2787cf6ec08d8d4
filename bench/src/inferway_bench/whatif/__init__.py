"""`inferway what-if`: recorded requests on another fleet, or by another policy, in virtual time.

replay     a recording, the part of it that is asked for, and its requests as the simulation's
learned    records -> the engines' constants
figures    what is told of a run, what exceeds the noise of the model, and the fewest engines
run        what is changed, what fleet and policy that is, and the simulations
report     the command's tables, sentences and pictures
"""
