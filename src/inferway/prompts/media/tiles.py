"""The grid of tiles whose form is closest to a picture's, as InternVL chose it first.

Source: vLLM 0.32, transformers_utils/processors/internvl.py (`find_closest_aspect_ratio`).
"""

from __future__ import annotations

from inferway.prompts.media.rule import Size

_MOST_TILES = 100


def grids(least: int, most: int) -> list[Size]:
    """Return the grids of that many tiles, the smallest first. Raises ValueError if there are more
    than any released model has."""
    if most > _MOST_TILES:
        raise ValueError(f"{most} tiles")
    sides = range(1, most + 1)
    found = [Size(w, h) for w in sides for h in sides if least <= w * h <= most]
    return sorted(found, key=lambda grid: grid.width * grid.height)


def closest(size: Size, grids: list[Size], tile: int) -> Size:
    """Return the grid closest to the picture; of several the largest one that it fills half."""
    aspect, area = size.width / size.height, size.width * size.height
    best, least = Size(1, 1), float("inf")
    for grid in grids:
        difference = abs(aspect - grid.width / grid.height)
        if difference < least:
            best, least = grid, difference
        elif difference == least and area > 0.5 * tile * tile * grid.width * grid.height:
            best = grid
    return best


def count_with_thumbnail(size: Size, grids: list[Size], tile: int) -> int:
    """Return the tiles that a picture is cut into, and one of the whole if it is cut."""
    grid = closest(size, grids, tile)
    count = grid.width * grid.height
    return count + (count > 1)
