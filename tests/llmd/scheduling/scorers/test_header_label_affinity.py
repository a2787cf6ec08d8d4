"""Labels that a header asks for."""

from __future__ import annotations

from tests.scheduling.tables import candidates, request, with_header

from inferway.scheduling.plugin import Scorer
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.scorers.affinity import HEADER_LABEL, HeaderLabelParameters

TABLE = candidates(labels=[{"tier": "gold"}, {"tier": "iron"}, {}, {"tier": "gold"}])


def test_endpoints_with_the_headers_value_are_preferred() -> None:
    scorer = HEADER_LABEL.build(
        HeaderLabelParameters(header_name="X-Tier", label_key="tier"), Building()
    )
    assert isinstance(scorer, Scorer)

    assert scorer.score(with_header("x-tier", b"gold"), TABLE).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert scorer.score(with_header("x-tier", b"tin"), TABLE).tolist() == [0.0] * 4
    assert scorer.score(request(), TABLE).tolist() == [0.0] * 4
