"""Columns that plugins add to the table of candidates, by name and type: who produces one and who
reads it both import it from here."""

from __future__ import annotations

from inferway.model import Added, Column

# What `scheduling.expected_ttft` expects of the request on each endpoint, in milliseconds; NaN
# where nothing is known.
EXPECTED_TTFT_MS: Added[Column] = Added("expected-ttft-ms")  # to its first token
EXPECTED_TPOT_MS: Added[Column] = Added("expected-tpot-ms")  # from each token to the next
