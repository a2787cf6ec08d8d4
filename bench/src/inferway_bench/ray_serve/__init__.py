"""`inferway bench ray`: Inferway's router in Ray Serve beside Ray's own, with the same replicas and
requests. `worker` runs Ray, in the interpreter that has it; `benchmark` sends the requests."""
