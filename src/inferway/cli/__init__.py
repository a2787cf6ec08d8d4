"""The `inferway` command: parses arguments, calls `app` or `bench`; no logic of its own."""

import sys

if sys.platform == "win32":  # said before an import fails with a traceback
    raise SystemExit(
        "inferway: Windows is not supported, because uvloop does not run there; "
        "use Linux or macOS, or WSL 2 on Windows"
    )

from inferway.cli.early import end_by_signals

end_by_signals(sys.argv[1:])  # before imports that take a while

from inferway.cli.main import main  # noqa: E402

__all__ = ["main"]
