"""Which engines a run starts."""

from __future__ import annotations

import json

from inferway_bench.peers.plan import RealEngines


def test_real_engines_have_the_model_unless_fewer_layers_are_asked_for() -> None:
    whole, fewer = RealEngines(), RealEngines(layers=2, dtype="float32")

    assert "--load-format" not in whole.flags()
    assert "with SmolLM2-135M, one thread" in whole.about

    flags = fewer.flags()
    assert json.loads(flags[flags.index("--hf-overrides") + 1]) == {"num_hidden_layers": 2}
    assert flags[flags.index("--load-format") + 1] == "dummy"
    assert "with 2 layers of SmolLM2-135M's shape in float32, one thread" in fewer.about
