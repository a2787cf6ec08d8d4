"""Telemetry of requests and engines: metrics, logs, spans and published decisions."""
