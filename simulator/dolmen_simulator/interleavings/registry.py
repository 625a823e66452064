"""Lists every pair of calls that the exhaustive mode runs."""

from __future__ import annotations

from dolmen_simulator.interleavings.changes import CHANGES
from dolmen_simulator.interleavings.checks import Pair
from dolmen_simulator.interleavings.columns import COLUMNS
from dolmen_simulator.interleavings.constraints import CONSTRAINTS
from dolmen_simulator.interleavings.doubt import DOUBT
from dolmen_simulator.interleavings.erasures import ERASURES
from dolmen_simulator.interleavings.feeds import FEEDS
from dolmen_simulator.interleavings.fences import FENCES
from dolmen_simulator.interleavings.groups import GROUPS
from dolmen_simulator.interleavings.inserts import INSERTS
from dolmen_simulator.interleavings.pairs import WRITERS
from dolmen_simulator.interleavings.partial_writes import PARTIAL_WRITES
from dolmen_simulator.interleavings.past import PAST
from dolmen_simulator.interleavings.publications import PUBLICATIONS
from dolmen_simulator.interleavings.segments import SEGMENTS
from dolmen_simulator.interleavings.upkeep import UPKEEP

PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        *WRITERS,
        *UPKEEP,
        *DOUBT,
        *FENCES,
        *SEGMENTS,
        *CHANGES,
        *COLUMNS,
        *CONSTRAINTS,
        *PARTIAL_WRITES,
        *PAST,
        *FEEDS,
        *ERASURES,
        *PUBLICATIONS,
        *GROUPS,
        *INSERTS,
    )
}
"""All pairs, by name."""
