"""What users of llm-d and of the Gateway API know, for Inferway.

ext_proc    the endpoint picker behind Envoy (extra `epp`)
scheduling  llm-d's plugin types, beside those of core
cli         `inferway epp`
"""
