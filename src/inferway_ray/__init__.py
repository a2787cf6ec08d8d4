"""Inferway under Ray Serve (extra `ray`): Serve's handles choose replicas as the gateway chooses
engines, and Serve supervises engines and gateways.

announced   what a replica tells of its engine       -> the engine's settings
asked       the arguments of a handle call           -> the OpenAI request in them
journeys    requests and replicas                    -> ranked replicas, by director and index
metrics     what a router has decided                -> Ray's metrics
router      Ray's RequestRouter around `journeys`
llm         the same for Ray's own LLM deployments
stand_in    for a replica without HTTP: what the fleet asks an engine
programs    deployments that run a program: an engine, or a gateway
keeper      runs such a program, and ends it with its replica
ingress     a deployment that hands OpenAI requests to engines
apps        applications of these, for Ray's configuration files
watch       a deployment's replicas                  -> lines with engines, for `--engines-ray`

`announced`, `asked`, `journeys`, `settings` and `stand_in` need no Ray.
"""
