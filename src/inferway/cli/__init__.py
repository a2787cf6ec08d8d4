"""The `inferway` command: parses arguments, calls `app` or `bench`; no logic of its own."""

from inferway.cli.main import main

__all__ = ["main"]
