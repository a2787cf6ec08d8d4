"""The rating of a quantity of which less is better, free of its unit."""

from __future__ import annotations

import numpy as np

from inferway.model import Column


def below_mean(column: Column, min_scale: float) -> Column:
    """0.5 at the mean, 1 for a scale below it or more, 0 for a scale above or more.

    The scale is the mean itself, and at least `min_scale`, so that small differences on a quiet
    fleet do not count. The form is production-stack's `loadaware`: (x - mean) / max(1, mean).
    """
    # As few and as plain array operations as it can be: on short columns their number is the
    # cost, and mean() and clip() take three times as long.
    mean = float(np.add.reduce(column)) / len(column)
    slope = 0.5 / max(min_scale, mean)
    rating: Column = column * -slope
    rating += 0.5 + mean * slope
    np.maximum(rating, 0.0, out=rating)
    return np.minimum(rating, 1.0, out=rating)
