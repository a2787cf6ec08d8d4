"""The flags that say what clients may ask and see."""

from __future__ import annotations

import click

from inferway.cli.key_options import ON, key_option, number_option

SURFACE = (
    number_option(
        "--admin-port",
        "admin_port",
        "Answer admin paths and /metrics there, and not on --port.",
        "PORT",
    ),
    key_option(
        "--allow-path",
        "allow_paths",
        multiple=True,
        metavar="[METHOD ]/PATH",
        help="Forward this path too, by load; may be repeated. All that is not known is 404.",
    ),
    key_option(
        "--trust-kv-transfer-params",
        "trust_kv_transfer_params",
        **ON,
        help="Let clients say where engines fetch blocks from; else that is a 400.",
    ),
    key_option(
        "--salt-per-tenant",
        "salt_per_tenant_env",
        metavar="NAME",
        help="Let tenants share no cached blocks: NAME is an environment variable with a secret "
        "that their salts are made with.",
    ),
    key_option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Let browsers' pages from there ask; may be repeated; * is everywhere.",
    ),
    key_option(
        "--access-log-probes",
        "access_log_probes",
        **ON,
        help="Write a line to the access log for answers to /health, /ready, /metrics and /ping, "
        "too.",
    ),
    key_option(
        "--log-format",
        "log_format",
        type=click.Choice(["text", "json"]),
        help="Write the log and the access log as text, or as one JSON object a line.  "
        "[default: text]",
    ),
    key_option(
        "--otlp",
        "otlp",
        metavar="URL",
        help="Send OpenTelemetry's spans there (OTLP over HTTP, http://HOST:4318/v1/traces).",
    ),
)
