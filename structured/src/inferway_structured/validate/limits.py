"""Limits of what a spec may ask for. Each bound has the measured harm that it keeps away; what
people write stays far below (the largest of 300 schemas of JSONSchemaBench in brackets).

The limits are about what is quick to count. What is within them compiles in the time that the
libraries' own limits (fuel, symbols) leave, which are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferway_structured.spec import MAX_TEXT_BYTES


@dataclass(frozen=True, slots=True)
class SpecLimits:
    """The limits of what one spec may ask for."""

    max_bytes: int = MAX_TEXT_BYTES  # [201 kB]; a tower of anyOf with 2^12 leaves: 627 kB, 7.6 s
    max_nesting: int = 64  # [16] objects and arrays; vLLM's own limit (sampling_params.py)
    max_enum: int = 10_000  # [392] values; 20,000: 2.7 s (xgrammar)
    max_items: int = 10_000  # [1,000] minItems, maxItems and the like; 100,000: 2.4 s, 218 MB
    max_items_total: int = 100_000  # of all of them: llguidance ends at 500,000 symbols, 290 MB
    max_length: int = (
        2**32 - 1
    )  # [65,535] minLength, maxLength: what llguidance reads; free till met
    max_object_properties: int = 2_000  # [311] of one object; 8,000: 1.3 s, quadratic
    max_properties: int = 20_000  # of all objects
    max_branches: int = 2_000  # [33] of one anyOf, oneOf or allOf
    max_expansion: int = 20_000  # [~400] schemas one value is held against; 2^24 in 1.5 kB: 0.3 s
    max_conjoined: int = 10  # [2] patterns on one string; 15 unlike ones: llguidance never returns
    max_patterns: int = 2_000  # [153] in one schema
    max_repeats: int = 1_000_000  # rounds that a pattern's counted repeats spell out, inside
    # each other multiplied; of all patterns together, too
    max_path: int = 1_000  # [116] sub-schemas after each other, references followed: libraries
    # recurse, and llguidance's stack of 8 MB overflows at 2,000, which ends the process
    max_pattern_steps: int = 200_000  # [3,378] of trying all patterns (regexes.py): 25 ms
    max_shorthands: int = 400  # [10] \w, \d, \s in a pattern; of many, the root of the sum of
    # their squares: jsonschema_rs takes 3.4 s for 1,500, quadratic
    max_choices: int = 10_000
    max_rules: int = 1_000  # of a grammar; the same stack, at 4,000
    max_grammar_bytes: int = 64 * 1024
