"""All mutations."""

from __future__ import annotations

from mutations.mutation import Mutation
from mutations.of_columns import COLUMNS
from mutations.of_commits import COMMITS
from mutations.of_constraints import CONSTRAINTS
from mutations.of_deletes import DELETES
from mutations.of_erasures import ERASURES
from mutations.of_feeds import FEEDS
from mutations.of_inserts import INSERTS
from mutations.of_partial_writes import PARTIAL_WRITES
from mutations.of_past import PAST
from mutations.of_publications import PUBLICATIONS
from mutations.of_renames import RENAMES
from mutations.of_stores import STORES
from mutations.of_updates import UPDATES
from mutations.of_upkeep import UPKEEP

MUTATIONS: tuple[Mutation, ...] = (
    *COMMITS, *RENAMES, *DELETES, *UPDATES, *UPKEEP, *COLUMNS, *PAST, *STORES, *FEEDS, *ERASURES, *PUBLICATIONS,
    *INSERTS, *CONSTRAINTS, *PARTIAL_WRITES,
)  # fmt: skip
