"""Sort keys with directions, NULLs and transforms: their text, and the order of rows, whatever their types."""

from __future__ import annotations

import math
import os
import random
from functools import cmp_to_key
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolmen.base.runtime import Runtime
from dolmen.errors import InputError, SchemaError
from dolmen.format.column_terms import SortTerm, parse_sort_key, sort_terms, sort_texts
from dolmen.format.entries import Bounds
from dolmen.format.schema import Schema
from dolmen.format.types import to_plain
from dolmen.maintenance.compact.rewrite import Sorter
from dolmen.rows.write.row_order import RowOrder
from dolmen.rows.write.runs import extent
from support.random_tables import FLAT, random_column
from support.written import entry_for, write

SEED = int(os.environ.get("DOLMEN_TEST_SEED", "0")) or random.randrange(1, 2**32)
COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string()), ("sales, net", pa.int8())])


@pytest.mark.parametrize(
    ("given", "stored", "shown"),
    [
        ("id", (1,), ["id"]),
        ("id asc, ID DESC nulls last", None, []),
        ("day(at) desc nulls first, id", ("day(2) desc nulls first", 1), ["day(at) DESC NULLS FIRST", "id"]),
        (["days(at)", "at DESC", "NAME nulls FIRST"], ("day(2)", "2 desc", "3 nulls first"), None),
        ("bucket(16, id), truncate[3](name) DESC", ("bucket[16](1)", "truncate[3](3) desc"), None),
        (['"sales, net" DESC'], ("4 desc",), ['"sales, net" DESC']),
        ("sales, net", (4,), ["sales, net"]),
        ([], (), []),
    ],
)
def test_a_key_is_read_stored_and_shown(given: Any, stored: Any, shown: list[str] | None) -> None:
    schema = Schema.from_arrow(COLUMNS)
    if stored is None:
        with pytest.raises(SchemaError, match="twice"):
            parse_sort_key(given, schema)
        return
    assert parse_sort_key(given, schema) == stored
    texts = sort_texts(stored, schema)
    assert shown is None or texts == shown
    assert parse_sort_key(texts, schema) == stored


@pytest.mark.parametrize(
    "wrong",
    ["day(id)", "nothing", "id DESC LAST", "lower(name)", "bucket(id)", "id,", "day(at), day(at) DESC", "id id"],
)
def test_what_is_no_key_is_refused(wrong: str) -> None:
    with pytest.raises(InputError):
        parse_sort_key(wrong, Schema.from_arrow(COLUMNS))
    with pytest.raises(InputError):
        sort_terms(("3 descending",))


def random_terms(rng: random.Random, schema: Schema) -> tuple[SortTerm, ...]:
    """Terms of the first columns: in any direction, at times of a transform that the type has."""
    terms = []
    for field in schema.fields[: rng.randint(1, 2)]:
        for name in rng.sample(["identity", "day", "hour", "year", "bucket[3]", "truncate[2]"], 6):
            text = f'{name}("{field.name}")' if name != "identity" else f'"{field.name}"'
            words = rng.choice(["", " DESC"]) + rng.choice(["", " NULLS FIRST", " NULLS LAST"])
            try:
                terms += sort_terms(parse_sort_key([text + words], schema))
                break
            except SchemaError:
                continue
    return tuple(terms)


def compare(terms: tuple[SortTerm, ...], left: list[Any], right: list[Any]) -> int:
    """The order of two rows of transformed values, value by value."""
    for term, one, other in zip(terms, left, right, strict=True):
        if one is None or other is None:
            if one is not other:
                return -1 if (one is None) == term.nulls_first else 1
            continue
        nan = [isinstance(each, float) and math.isnan(each) for each in (one, other)]
        sign = nan[0] - nan[1] if any(nan) else (one > other) - (one < other)
        if sign:
            return -sign if term.descending else sign
    return 0


def ordered_values(terms: tuple[SortTerm, ...], rows: pa.Table, schema: Schema) -> list[list[Any]]:
    """The values that rows are sorted by."""
    columns = [rows[schema.by_id[term.id].name].combine_chunks() for term in terms]
    whole = [pa.concat_arrays(each.chunks) if isinstance(each, pa.ChunkedArray) else each for each in columns]
    values = [to_plain(term.transform.array(each)) for term, each in zip(terms, whole, strict=True)]
    return [list(row) for row in zip(*values, strict=True)]


@pytest.mark.parametrize("kind", [*FLAT])
def test_rows_of_any_type_are_written_and_merged_in_any_order(kind: str, tmp_path: Path) -> None:
    """Against Python's sort, which is stable as well; merged from runs in little memory, by bounds of their batches."""
    print(f"DOLMEN_TEST_SEED={SEED}")
    rng = random.Random(f"{SEED} {kind}")
    for _ in range(6):
        columns = {"k": random_column(rng, kind, 120), "l": random_column(rng, rng.choice([*FLAT]), 120)}
        rows = pa.table({**columns, "n": pa.array(range(120))})
        schema = Schema.from_arrow(rows.schema)
        terms = random_terms(rng, schema)
        entry = entry_for(rows.schema, sort_key=[term.text(schema) for term in terms])
        rows = rows.cast(schema.arrow)
        values = ordered_values(terms, rows, schema)
        expected = sorted(range(120), key=cmp_to_key(lambda a, b: compare(terms, values[a], values[b])))  # noqa: B023
        assert write(rows, entry=entry).rows()["n"].to_pylist() == expected, terms

        order = RowOrder(entry)
        items = []
        for batch in rows.combine_chunks().to_batches(max_chunksize=12):
            least, greatest, nulls, nans, in_footer = extent(pa.chunked_array([batch["k"]]))
            bounds = Bounds() if in_footer else Bounds(least, greatest, nulls, nans)
            items.append((order.least(bounds), order.extend(batch)))
        known = [item for item in items if item[0] is not None]
        known.sort(key=lambda item: [to_plain(pa.array([each], each.type))[0] for each in item[0] or ()])
        unknown = [item for item in items if item[0] is None]
        sorter = Sorter(Runtime(), items[0][1].schema, order.names, rng.choice((1_000, 20_000)), str(tmp_path))
        found = pa.Table.from_batches(sorter.sort([*unknown, *known]))
        merged = ordered_values(terms, found, schema)
        assert all(compare(terms, *pair) <= 0 for pair in pairwise(merged)), (terms, merged)
        assert sorted(found["n"].to_pylist()) == list(range(120))


def test_footers_claim_the_order_up_to_the_first_transform() -> None:
    rows = pa.table({"id": [1, 2, 3], "at": pa.array([0, 1, 2], pa.timestamp("us"))})

    def claimed(*terms: str) -> tuple[pq.SortingColumn, ...]:
        written = write(rows, entry=entry_for(rows.schema, sort_key=terms))
        return tuple(written.parquet().metadata.row_group(0).sorting_columns)

    assert claimed("id DESC NULLS FIRST", "at") == (pq.SortingColumn(0, True, True), pq.SortingColumn(1))
    assert claimed("id DESC", "day(at)", "at") == (pq.SortingColumn(0, True),)
    assert claimed("day(at)", "id") == ()
