"""The flags that say what clients may ask and see."""

from __future__ import annotations

import click

SURFACE = (
    click.option(
        "--admin-port",
        type=int,
        metavar="PORT",
        help="Answer admin paths and /metrics there, and not on --port.",
    ),
    click.option(
        "--allow-path",
        "allow_paths",
        multiple=True,
        metavar="[METHOD ]/PATH",
        help="Forward this path too, by load; may be repeated. All that is not known is 404.",
    ),
    click.option(
        "--trust-kv-transfer-params",
        is_flag=True,
        help="Let clients say where engines fetch blocks from; else that is a 400.",
    ),
    click.option(
        "--salt-per-tenant",
        "salt_per_tenant_env",
        metavar="NAME",
        help="Let tenants share no cached blocks: NAME is an environment variable with a secret "
        "that their salts are made with.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Let browsers' pages from there ask; may be repeated; * is everywhere.",
    ),
    click.option(
        "--access-log-format",
        type=click.Choice(["text", "json"]),
        help="Of the access log's lines.  [default: text]",
    ),
    click.option(
        "--otlp",
        metavar="URL",
        help="Send OpenTelemetry's spans there (OTLP over HTTP, http://HOST:4318/v1/traces).",
    ),
)
