"""Files of a benchmark's input: where the installed ones lie, and what is in one, packed or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"


def default_data_dir() -> Path:
    """Return the folder of the data that is installed with the benchmarks."""
    return Path(__file__).with_name("data")


def unpacked(path: Path) -> bytes:
    """Return the content of a file that gzip or xz has packed, or that nothing has packed: its
    first bytes show which. Raises OSError when the file cannot be read or is damaged."""
    data = path.read_bytes()
    try:
        if data.startswith(_GZIP):
            return gzip.decompress(data)
        return _without_xz(data) if data.startswith(_XZ) else data
    except (EOFError, ValueError, zlib.error) as e:
        raise OSError(f"damaged: {e}") from e


def _without_xz(data: bytes) -> bytes:
    """Raises ValueError for damaged data."""
    import lzma  # a Python that was built without liblzma has none

    try:
        return lzma.decompress(data)
    except lzma.LZMAError as e:
        raise ValueError(str(e)) from e
