"""Compatibility with llm-d and the Gateway API.

ext_proc    the endpoint picker behind Envoy (extra `epp`)
scheduling  llm-d's plugin types, beside those of core
cli         `inferway epp`
"""
