"""What a match counts for, by how true what we believe of the endpoint is."""

from __future__ import annotations

import numpy as np

from inferway.model import BLIND, STALE

# By state. Of a partial engine all we believe is true, it may only hold more; one that is being
# repaired is a moment behind. Behind a lost link nothing confirms what we believe: mostly it is a
# hiccup and all is still there, sometimes the engine was restarted and nothing is. Half lets an
# engine that confirms as much win, and the stale one win over those that hold little.
TRUST = np.ones(5)
TRUST[STALE] = 0.5
TRUST[BLIND] = 0.0
TRUST.setflags(write=False)
