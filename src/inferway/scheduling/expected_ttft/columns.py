"""What an expectation was made of: columns that `plugin` adds and it and `follower` read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.model import Added, Column

# One row for each endpoint: the features, and what each made up of the expectation.
FEATURES: Added[NDArray[np.float64]] = Added("expected-ttft-features")
TERMS_MS: Added[NDArray[np.float64]] = Added("expected-ttft-terms-ms")
COST_MS: Added[Column] = Added("expected-cost-ms")  # TTFT, and what it costs others
TRIED: Added[NDArray[np.bool_]] = Added("expected-ttft-tried")  # whether it is to be got to know
