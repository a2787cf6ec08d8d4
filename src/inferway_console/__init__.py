"""The console: records of requests and why they went as they did, what breaks caches, /v1/explain,
and the page.

console       the extension that a gateway gets by the entry point `console`
explain_path  POST /v1/explain
records       what is kept of requests, in memory and in files
page          the page for operators
cli           `inferway explain`, `inferway record`
"""
