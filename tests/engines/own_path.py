"""Imported in vLLM's environment: lets the gateway be imported there, with what that
environment lacks. What both have is vLLM's."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

sys.path[:0] = [str(ROOT / "src"), str(ROOT / "structured" / "src")]
sys.path += map(str, (ROOT / ".venv" / "lib").glob("python3*/site-packages"))
