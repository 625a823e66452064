"""Pairs of files of changes that say different things of one row with the same sequence."""

from __future__ import annotations

from io import BytesIO

from dolmen.database import Database
from dolmen.format.ingest_properties import CdcSettings, IngestSettings
from dolmen.ingest.cdc.apply import ingest_changes
from dolmen.ingest.formats.formats import detect
from dolmen_simulator.interleavings.checks import Pair
from dolmen_simulator.interleavings.pairs import one_table
from dolmen_simulator.interleavings.upkeep import changing


def with_changes(db: Database) -> None:
    """A table that changes were applied to before: the memory of what they delete is there."""
    one_table(db)
    with db.transaction() as transaction:
        ingest_changes(
            transaction,
            "t",
            lambda: BytesIO(b'{"Op": "U", "k": 3, "v": 50}\n'),
            detect("changes.jsonl"),
            name="changes.jsonl",
            settings=IngestSettings(mode="cdc", cdc=CdcSettings("flat", "v", (), "Op", 10**15)),
            on_bad_row=None,
            request="before",
        )


CHANGES: tuple[Pair, ...] = (
    Pair(
        "changes/changes of equal sequences",
        with_changes,
        (changing("a", ("U", (1, 100, None))), changing("b", ("D", (1, 100, None)))),
        events=True,
        quick_fates=(),
    ),
)
