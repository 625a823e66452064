"""Changes whose rows break a check of their table are bad rows."""

from __future__ import annotations

import json
from io import BytesIO

import pyarrow as pa
import pytest

from dolmen.errors import RowError
from dolmen.format.ingest_properties import IngestSettings
from dolmen.ingest.cdc.apply_changes import ingest_changes
from dolmen.ingest.drops.drop_outcomes import RowCounts
from dolmen.ingest.formats.formats import SourceFile, detect
from dolmen.ingest.formats.source_file import BadRow, OnBadRow, ReadOptions
from dolmen.transactions.transaction import unit_of
from support.changes import Place

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("lsn", pa.int64())])
CHANGES = [
    {"op": "c", "id": 1, "n": 1, "lsn": 1},
    {"op": "c", "id": 2, "n": -2, "lsn": 2},
    {"op": "u", "id": 1, "n": -3, "lsn": 3},
    {"op": "d", "id": 1, "n": -4, "lsn": 4},
    {"op": "c", "id": 3, "n": None, "lsn": 5},
]


def apply(place: Place, on_bad_row: OnBadRow | None) -> RowCounts:
    body = "".join(json.dumps(change) + "\n" for change in CHANGES).encode()
    with place.db.transaction("ingest") as transaction:
        settings = IngestSettings.of(unit_of(transaction).entry("t"))
        source = SourceFile(lambda: BytesIO(body), detect("a.jsonl"), "a.jsonl", ReadOptions.of(settings))
        counts = ingest_changes(transaction, "t", source, settings=settings, on_bad_row=on_bad_row, request="a")
        transaction.bind("a", "")
    return counts


def test_changed_rows_that_break_a_check_are_bad_rows_and_deletes_are_not() -> None:
    place, bad = Place(), list[BadRow]()
    properties = {"ingest_mode": "cdc", "cdc_envelope": "flat", "cdc_operation": "op", "cdc_sequence": "lsn"}
    table = place.db.create_table("t", COLUMNS, primary_key="id", properties=properties)
    table.add_check("positive", "n > 0")
    with pytest.raises(RowError, match="row 2: the check 'positive' is FALSE: n > 0"):
        apply(place, None)
    apply(place, bad.append)
    assert [(each.row, each.reason) for each in bad] == [
        (number, "the check 'positive' is FALSE: n > 0") for number in (2, 3)
    ]
    assert table.to_arrow().select(["id", "n"]).to_pylist() == [{"id": 3, "n": None}]
