"""The gate in front of the engines: can the shape asked of an answer be kept, and was it?

gate       a parsed request           -> a shape to keep, or 400 with the place; no engine sees it
shape      one such request on its way: what its engine does not enforce; its answer, judged
turns      work that waits -> fairly, between tenants
costs      what compiling takes, and which engine has it done; pure
quarantine what engines were lost with -> which specs are refused, and for how long; pure
warm       shape + chosen engine      -> the engine compiles while the prompt is on its way

What is found of shapes and answers, `inferway_structured.verdicts` finds, here as in the engines.
Both frontends use the gate, by a step of the director (`routing.director.shape_of`); only HTTP
is theirs.
"""
