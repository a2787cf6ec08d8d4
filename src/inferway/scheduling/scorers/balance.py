"""The rating of a quantity of which less is better, free of its unit."""

from __future__ import annotations

import numpy as np

from inferway.model import Column


def below_mean(column: Column, min_scale: float) -> Column:
    """0.5 at the mean, 1 for a scale below it or more, 0 for a scale above or more.

    The scale is the mean itself, and at least `min_scale`, so that small differences on a quiet
    fleet do not count. The form is production-stack's `loadaware`: (x - mean) / max(1, mean).
    """
    # reduce, minimum and maximum are a third of what mean() and clip() cost on short columns
    mean = float(np.add.reduce(column)) / len(column)
    relative = (column - mean) * (0.5 / max(min_scale, mean))
    return 0.5 - np.minimum(np.maximum(relative, -0.5), 0.5)
