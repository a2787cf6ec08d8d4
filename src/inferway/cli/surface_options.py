"""The flags that say what clients may ask, and what is told of it."""

from __future__ import annotations

from typing import Final

import click

from inferway.cli.command import section
from inferway.cli.flag import LineList, OneOf
from inferway.cli.key_options import ON, key_option

SECURITY: Final = section(
    "Security",
    key_option(
        "--api-keys",
        "api_keys",
        type=click.Path(),
        metavar="FILE",
        help="Demand one of the API keys in this file of every caller; the key says the caller's "
        "tenant and priority. `inferway keys add` writes the file.",
    ),
    key_option(
        "--admin-key-env",
        "admin_key_env",
        metavar="NAME",
        help="Demand the key in the environment variable NAME for scores and admin paths. Without "
        "it they are open.",
    ),
    key_option(
        "--salt-per-tenant",
        "salt_per_tenant_env",
        metavar="NAME",
        help="Let no two tenants share cached blocks: their cache salts are made with the secret "
        "in the environment variable NAME.",
    ),
    key_option(
        "--allow-path",
        "allow_paths",
        type=LineList(),
        multiple=True,
        metavar="[METHOD ]/PATH",
        help="Forward this path, too, to the least loaded engine. Repeat the flag for more paths; "
        "every unknown path is answered with status 404.",
    ),
    key_option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Allow web pages from this origin, https://HOST, to send requests from a browser; * "
        "allows all. Repeat the flag for more.",
    ),
    key_option(
        "--trust-kv-transfer-params",
        "trust_kv_transfer_params",
        **ON,
        help="Let clients say where engines fetch blocks from. Otherwise such a request is "
        "answered with status 400.",
    ),
    key_option(
        "--trust-priority",
        "trust_priority",
        **ON,
        help="Let clients set the `priority` of a request in its engine's queue. Otherwise such a "
        "request is answered with status 400.",
    ),
    example="inferway serve http://10.0.0.5:8000 --api-keys keys.yaml",
)

OBSERVABILITY: Final = section(
    "Observability",
    key_option(
        "--ui/--no-ui",
        "ui",
        default=None,
        help="Serve the page for operators at /, on the admin port if there is one.  "
        "[default: --ui]",
    ),
    key_option(
        "--access-log",
        "access_log",
        type=click.Path(),
        metavar="FILE",
        help='Write one line for each answered request to this file; "-" is standard error, '
        '"none" writes no such lines.  [default: -]',
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
        type=OneOf(["text", "json"]),
        help="Write the log and the access log as text, or as one JSON object a line.  "
        "[default: text]",
    ),
    key_option(
        "--log-level",
        "log_level",
        type=OneOf(["debug", "info", "warning", "error"]),
        help="Log what is at least as severe as this.  [default: info]",
    ),
    key_option(
        "--otlp",
        "otlp",
        metavar="URL",
        help="Send OpenTelemetry spans to this URL (OTLP over HTTP): http://HOST:4318/v1/traces.",
    ),
    key_option(
        "--record",
        "records.directory",
        type=click.Path(),
        metavar="DIR",
        help="Write a record of each request to compressed files in this directory: times, "
        "lengths, candidates and hashes of blocks; no text and no token ids.",
    ),
    key_option(
        "--publish",
        "publish",
        metavar="tcp://…",
        help="Publish decisions and KV events over ZMQ at this address: one with a wildcard, "
        "tcp://*:5558, is bound, any other is connected to.",
    ),
    key_option(
        "--publish-text",
        "publish_text",
        **ON,
        help="Publish prompts and messages, too. Whoever can connect then reads them.",
    ),
    key_option(
        "--explain-text",
        "explain_text",
        **ON,
        help="Keep the last prompts in memory as token ids, and let admins see the text around the "
        "place where one was not reused. It needs --admin-key-env or --api-keys.",
    ),
    example="inferway serve http://10.0.0.5:8000 --publish tcp://*:5558 --access-log none",
)
