"""In front of the engines: whether the shape asked of an answer can be kept, and whether it was.

gate       a parsed request           -> a shape to keep, or 400 with the place; no engine sees it
shape      one such request on its way: what its engine does not enforce; its answer, judged
trial      spec -> verdict, in a process that can be killed
costs      what compiling takes, and which engine has it done; pure
verdicts   spec -> what is found of it, once, each tenant in its turn
turns      work that waits -> fairly, between tenants
quarantine what shapes have brought down -> which are refused, and for how long; pure
warm       shape + chosen engine      -> the engine compiles while the prompt is on its way

Both frontends use it, by a step of the director (`steps/shape.py`); only HTTP is theirs.
"""
