"""`inferway what-if`: recorded requests on another fleet, or by another policy, in virtual time.

recorded   a recording in memory, and the part of it that is asked for
engines    what the records say of each engine's time
workload   recorded requests -> the simulation's, beside what was measured of them
learned    records -> the engines' constants
figures    what is told of a run, measured or simulated alike
cases      what is changed, and what fleet and policy that is
run        the simulations, in as many processes as there are cores
words      which differences exceed the noise of the model
size       the fewest engines that hold what is asked of them
report     the command's tables, sentences and pictures
"""
