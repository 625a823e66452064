"""Pairs of change files: of one row under one sequence number, with values left out, and of a table and its clone."""

from __future__ import annotations

from io import BytesIO

from dolmen.api.database import Database
from dolmen.format.ingest_properties import CdcSettings, IngestSettings
from dolmen.ingest.cdc.apply_changes import ingest_changes
from dolmen.ingest.formats.formats import SourceFile, detect
from dolmen_simulator.interleavings.checks import Pair
from dolmen_simulator.interleavings.pairs import one_table
from dolmen_simulator.interleavings.upkeep import LEFT_OUT, change_file


def table_with_changes(db: Database) -> None:
    """Makes a table to which changes were applied before, so that its memory of deleted keys exists."""
    one_table(db)
    with db.transaction() as transaction:
        ingest_changes(
            transaction,
            "t",
            SourceFile(lambda: BytesIO(b'{"Op": "U", "k": 3, "v": 50}\n'), detect("changes.jsonl"), "changes.jsonl"),
            settings=IngestSettings(mode="cdc", cdc=CdcSettings("flat", "v", (), "Op", 10**15)),
            on_bad_row=None,
            request="before",
        )


def cloned_table_with_changes(db: Database) -> None:
    """Makes the same table with a clone, which remembers deleted keys by itself."""
    table_with_changes(db)
    db.clone("t", "copy")


CHANGES: tuple[Pair, ...] = (
    Pair(
        "changes/changes of equal sequences",
        table_with_changes,
        (change_file("a", ("U", (1, 100, None))), change_file("b", ("D", (1, 100, None)))),
        events=True,
        quick_fates=(),
    ),
    Pair(
        "changes/a late change of a value that is left out",
        table_with_changes,
        (change_file("a", ("U", (1, 100, LEFT_OUT))), change_file("b", ("U", (1, 50, 5_000_000)))),
        events=True,
        quick=(0,),
        quick_fates=(),
    ),
    Pair(
        "changes/a later change of a value that is left out",
        table_with_changes,
        (
            change_file("a", ("U", (1, 100, 5_000_000)), ("D", (2, 100, None))),
            change_file("b", ("U", (1, 150, LEFT_OUT)), ("U", (3, 150, LEFT_OUT))),
        ),
        events=True,
        quick=(0,),
        quick_fates=(),
    ),
    Pair(
        "changes/changes of a clone",
        cloned_table_with_changes,
        (change_file("a", ("D", (1, 100, None))), change_file("b", ("D", (2, 100, None)), table="copy")),
        events=True,
        quick=(0,),
        quick_fates=(),
    ),
)
