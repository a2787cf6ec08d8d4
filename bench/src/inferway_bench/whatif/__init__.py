"""`inferway what-if`: recorded requests on another fleet, or by another policy, in virtual time.

recorded   a recording in memory, and the part of it that is asked for
replay     recorded requests -> the simulation's, beside what was measured of them
learned    records -> the engines' constants
figures    what is told of a run, what exceeds the noise of the model, and the fewest engines
run        what is changed, what fleet and policy that is, and the simulations
report     the command's tables, sentences and pictures
proven     `inferway bench what-if`: whether it is right
"""
