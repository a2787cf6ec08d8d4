"""Columns that plugins add to the table of candidates, by name and type: who produces one and who
reads it both import it from here."""

from __future__ import annotations

from inferway.model import Added, Column

# What each engine must still compile for the shape that the request asks of its answer, in
# milliseconds; it does so while it computes the prompt. Absent if it is next to nothing.
COMPILE_MS: Added[Column] = Added("compile-ms")
# What `scheduling.expected_ttft` expects of the request on each endpoint, in milliseconds; NaN
# where nothing is known.
EXPECTED_TTFT_MS: Added[Column] = Added("expected-ttft-ms")  # to its first token
EXPECTED_TPOT_MS: Added[Column] = Added("expected-tpot-ms")  # from each token to the next
