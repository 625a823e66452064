"""Every pair of calls that the exhaustive mode runs."""

from __future__ import annotations

from dolmen.testing.exhaustive_changes import CHANGES
from dolmen.testing.exhaustive_checks import Pair
from dolmen.testing.exhaustive_doubt import DOUBT
from dolmen.testing.exhaustive_fences import FENCES
from dolmen.testing.exhaustive_pairs import WRITERS
from dolmen.testing.exhaustive_segments import SEGMENTS
from dolmen.testing.exhaustive_upkeep import UPKEEP

PAIRS: dict[str, Pair] = {pair.name: pair for pair in (*WRITERS, *UPKEEP, *DOUBT, *FENCES, *SEGMENTS, *CHANGES)}
"""Each by its name."""
